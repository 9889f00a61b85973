//! Edits JSON objects in place. The order, the blanks, and the form of all other values are kept.

use std::ops::Range;

use crust_state::json::Json;
use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::value::RawValue;

/// A JSON object in a text.
#[derive(Debug)]
pub(crate) struct EditableObject<'a> {
    text: &'a str,
    /// The range of the object, including its braces.
    span: Range<usize>,
    /// The names, and the ranges of the values in the text. A name may occur more than once.
    members: Vec<(String, Range<usize>)>,
}

impl<'a> EditableObject<'a> {
    /// Parses a text; `Ok(None)` if it is valid JSON but not an object.
    pub(crate) fn parse(text: &'a str) -> Result<Option<Self>, serde_json::Error> {
        let value: &RawValue = serde_json::from_str(text)?;
        Ok(Self::at(text, Json::from_checked(value.get())))
    }

    fn at(text: &'a str, object: Json<'a>) -> Option<Self> {
        if !object.is_object() {
            return None;
        }
        let members = object.members().map(|(name, value)| {
            let name = serde_json::from_str(name.text()).ok()?;
            Some((name, value.span(text)))
        });
        Some(Self {
            text,
            span: object.span(text),
            members: members.collect::<Option<_>>()?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the text of a member's value. If the name occurs more than once, the last one is used, as in Go's
    /// decoder.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let mut members = self.members.iter().rev();
        let (_, value) = members.find(|member| member.0 == name)?;
        Some(&self.text[value.clone()])
    }

    /// Returns a member's value if it is a string.
    pub(crate) fn string(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    /// Returns the value of a member if it is an object.
    pub(crate) fn object(&self, name: &str) -> Option<Self> {
        self.objects().filter(|member| member.0 == name).last()?.1
    }

    /// Returns the names and values of the members. A value that isn't an object is `None`.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&str, Option<Self>)> {
        let members = self.members.iter();
        members.map(|(name, value)| {
            let value = Json::from_checked(&self.text[value.clone()]);
            (name.as_str(), Self::at(self.text, value))
        })
    }

    /// Returns the text with a new value for a member. A member that doesn't exist is added at the end, formatted like
    /// the last one: on a line of its own or not, and with the same indentation.
    pub(crate) fn with(&self, name: &str, value: &Value) -> String {
        let existing = self.members.iter().rev().find(|member| member.0 == name);
        if let Some((_, at)) = existing {
            return self.spliced(at.clone(), &value.to_string());
        }
        let above = &self.text[..self.span.start];
        let line = &above[above.rfind('\n').map_or(0, |newline| newline + 1)..];
        let indent = &line[..line.len() - line.trim_start().len()];
        let above = above.trim_start();
        let (at, comma, start, end) = match &*self.members {
            [.., (_, last)] => (
                last.end..last.end,
                ",",
                self.blanks_before_last(),
                String::new(),
            ),
            [] if above.is_empty() || above.contains('\n') => {
                let newline = if self.text.contains("\r\n") {
                    "\r\n"
                } else {
                    "\n"
                };
                let unit = if indent.is_empty() { "    " } else { indent };
                let start = format!("{newline}{indent}{unit}");
                (self.inside(), "", start, format!("{newline}{indent}"))
            }
            [] => (self.inside(), "", String::new(), String::new()),
        };
        let name = Value::from(name);
        let member = if let Some((_, own)) = start.rsplit_once('\n') {
            let unit = own.strip_prefix(indent).unwrap_or(own);
            let lines = pretty(value, unit).replace('\n', &start);
            format!("{comma}{start}{name}: {lines}{end}")
        } else {
            format!("{comma}{start}{name}:{value}")
        };
        self.spliced(at, &member)
    }

    /// Returns the text without a member. If the name occurs more than once, only the last one is removed.
    pub(crate) fn without(&self, name: &str) -> String {
        let at = self.members.iter().rposition(|member| member.0 == name);
        let Some(at) = at else {
            return self.text.to_owned();
        };
        let end = self.members[at].1.end;
        let gap = match (at.checked_sub(1), self.members.get(at + 1)) {
            (None, None) => self.inside(),
            (Some(before), _) => self.members[before].1.end..end,
            (None, Some(_)) => {
                let comma = self.text[end..].find(',').map_or(end, |comma| end + comma);
                self.name_after(self.span.start)..self.name_after(comma)
            }
        };
        self.spliced(gap, "")
    }

    /// Returns the blanks between the last member and the comma or brace in front of it.
    fn blanks_before_last(&self) -> String {
        let before = match &*self.members {
            [.., (_, before), _] => self.text[before.end..]
                .find(',')
                .map_or(0, |at| before.end + at),
            _ => self.span.start,
        };
        self.text[before + 1..self.name_after(before)].to_owned()
    }

    /// Returns the start of the name that follows the brace or comma at `at`.
    fn name_after(&self, at: usize) -> usize {
        let rest = &self.text[at + 1..];
        at + 1 + rest.len() - rest.trim_start().len()
    }

    /// Returns the range between the braces.
    fn inside(&self) -> Range<usize> {
        self.span.start + 1..self.span.end - 1
    }

    fn spliced(&self, at: Range<usize>, new: &str) -> String {
        format!("{}{new}{}", &self.text[..at.start], &self.text[at.end..])
    }
}

/// Formats a value with each member on a line of its own.
fn pretty(value: &Value, indent: &str) -> String {
    let mut bytes = Vec::new();
    let formatter = PrettyFormatter::with_indent(indent.as_bytes());
    let result = value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter));
    result.map_or_else(
        |_| value.to_string(),
        |()| String::from_utf8_lossy(&bytes).into_owned(),
    )
}
