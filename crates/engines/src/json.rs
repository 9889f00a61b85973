//! JSON objects that are edited in place: order, blanks and the form of each value stay.

use std::fmt;
use std::ops::Range;

use serde_json::value::RawValue;

/// A member of an object: its name, and where its value stands in the text.
#[derive(Debug)]
struct Member {
    name: String,
    value: Range<usize>,
}

/// An object in a text.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    text: &'a str,
    /// From brace to brace.
    span: Range<usize>,
    members: Vec<Member>,
}

/// The text isn't what an object looks like.
#[derive(Debug)]
pub(crate) enum NoObject {
    /// Not JSON; the line, and why.
    Syntax(usize, String),
    /// JSON, and no object.
    Kind,
}

impl<'a> Object<'a> {
    /// The object that a text is.
    pub(crate) fn parse(text: &'a str) -> Result<Self, NoObject> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or(&message);
            NoObject::Syntax(error.line(), message.to_owned())
        })?;
        Self::at(text, offset(text, raw.get()))
    }

    fn at(text: &'a str, span: Range<usize>) -> Result<Self, NoObject> {
        if !text[span.clone()].starts_with('{') {
            return Err(NoObject::Kind);
        }
        let Members(pairs) =
            serde_json::from_str(&text[span.clone()]).map_err(|_| NoObject::Kind)?;
        let members = pairs.into_iter().map(|(name, raw)| Member {
            name,
            value: offset(text, raw.get()),
        });
        let members = members.collect();
        Ok(Self {
            text,
            span,
            members,
        })
    }

    /// The value of a member, as it is written.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        Some(&self.text[self.member(name)?.value.clone()])
    }

    /// A member that is an object.
    pub(crate) fn object(&self, name: &str) -> Option<Result<Self, NoObject>> {
        let value = self.member(name)?.value.clone();
        Some(Self::at(self.text, value))
    }

    /// The members that are objects, with their names; one of a name that stands twice too.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&str, Self)> {
        self.members.iter().filter_map(|member| {
            let object = Self::at(self.text, member.value.clone()).ok()?;
            Some((member.name.as_str(), object))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The last of them counts, as it does to Go's decoder.
    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().rev().find(|member| member.name == name)
    }

    /// The text with another value for a member.
    pub(crate) fn with_value(&self, name: &str, value: &str) -> Option<String> {
        let at = self.member(name)?.value.clone();
        Some(spliced(self.text, at, value))
    }

    /// The text without a member.
    pub(crate) fn without(&self, name: &str) -> Option<String> {
        let at = self
            .members
            .iter()
            .rposition(|member| member.name == name)?;
        let value = self.members[at].value.clone();
        let gap = match (at.checked_sub(1), self.members.get(at + 1)) {
            (None, None) => self.inside(),
            (Some(before), _) => self.members[before].value.end..value.end,
            (None, Some(_)) => {
                let comma = value.end + self.text[value.end..].find(',')?;
                self.name_after(self.span.start)..self.name_after(comma)
            }
        };
        Some(spliced(self.text, gap, ""))
    }

    /// The text with one more member, the last. `value` is given the white space that begins a line
    /// in it, of this object's form; none in an object on one line.
    pub(crate) fn with_member(&self, name: &str, value: impl FnOnce(Form<'_>) -> String) -> String {
        let form = self.form();
        let name = serde_json::Value::from(name);
        let (start, colon) = (
            form.member.as_str(),
            if form.is_lines() { ": " } else { ":" },
        );
        let inner = Form {
            line: &form.member,
            unit: &form.unit,
        };
        let member = format!("{start}{name}{colon}{}", value(inner));
        let (at, new) = match self.members.last() {
            Some(last) => (last.value.end..last.value.end, format!(",{member}")),
            None => (self.inside(), format!("{member}{}", form.end)),
        };
        spliced(self.text, at, &new)
    }

    /// Where the next name begins, after a brace or comma.
    fn name_after(&self, at: usize) -> usize {
        let rest = &self.text[at + 1..];
        at + 1 + rest.len() - rest.trim_start().len()
    }

    /// Between the braces.
    fn inside(&self) -> Range<usize> {
        self.span.start + 1..self.span.end - 1
    }

    fn form(&self) -> Layout {
        let indent = indent_of_line(self.text, self.span.start);
        let (before, last) = match self.members.as_slice() {
            [.., before, last] => (before.value.end, last),
            [last] => (self.inside().start, last),
            [] => return self.form_of_nothing(indent),
        };
        // A comma, white space, the name.
        let gap = &self.text[before..last.value.start];
        let gap = gap.trim_start().strip_prefix(',').unwrap_or(gap);
        let member: String = gap.chars().take_while(|c| c.is_whitespace()).collect();
        let own = member.rsplit('\n').next().unwrap_or_default();
        Layout {
            unit: own.strip_prefix(indent).unwrap_or(own).to_owned(),
            end: String::new(),
            member,
        }
    }

    fn form_of_nothing(&self, indent: &str) -> Layout {
        let above = self.text[..self.span.start].trim_start();
        if !above.is_empty() && !above.contains('\n') {
            return Layout::default();
        }
        let unit = if indent.is_empty() { "    " } else { indent };
        let newline = if self.text.contains("\r\n") {
            "\r\n"
        } else {
            "\n"
        };
        Layout {
            end: format!("{newline}{indent}"),
            member: format!("{newline}{indent}{unit}"),
            unit: unit.to_owned(),
        }
    }
}

/// How an object's members stand; all on one line, if nothing else is said.
#[derive(Default)]
struct Layout {
    /// Before the closing brace, where there was nothing.
    end: String,
    /// Before a member.
    member: String,
    /// One level more.
    unit: String,
}

impl Layout {
    fn is_lines(&self) -> bool {
        self.member.contains('\n')
    }
}

/// How a member's value is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form<'a> {
    line: &'a str,
    unit: &'a str,
}

impl Form<'_> {
    /// An object with one member.
    pub(crate) fn object(self, name: &str, value: impl FnOnce(Form<'_>) -> String) -> String {
        let name = serde_json::Value::from(name);
        let Self { line, unit } = self;
        if !line.contains('\n') {
            return format!("{{{name}:{}}}", value(self));
        }
        let inner = format!("{line}{unit}");
        let value = value(Form { line: &inner, unit });
        format!("{{{inner}{name}: {value}{line}}}")
    }
}

/// Where a part of a text stands in it.
fn offset(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

fn spliced(text: &str, at: Range<usize>, new: &str) -> String {
    format!("{}{new}{}", &text[..at.start], &text[at.end..])
}

/// The white space that the line of an offset begins with.
fn indent_of_line(text: &str, at: usize) -> &str {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let line = &text[start..at];
    &line[..line.len() - line.trim_start().len()]
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> serde::Deserialize<'de> for Members<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Visitor)
    }
}
