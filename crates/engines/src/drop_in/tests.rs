use super::*;
use crate::crio::CRIO;
use crate::podman::PODMAN;
use crate::testing::{PROGRAM, UNWANTED, WANTED};

fn source(text: Option<&str>) -> Source {
    Source::new("/etc/ours.conf".into(), text.map(str::to_owned))
}

fn beside(text: &str) -> Source {
    Source::new("/etc/beside.conf".into(), Some(text.to_owned()))
}

impl DropIn {
    pub(crate) fn installed(&self, text: Option<&str>) -> String {
        let mut edits = self.install(&[source(text)], WANTED).unwrap();
        edits.remove(0).after.unwrap()
    }

    pub(crate) fn refused(&self, text: &str) -> HandlerError {
        self.install(&[source(Some(text))], WANTED).unwrap_err()
    }

    /// `None`: the file is gone.
    pub(crate) fn uninstalled(&self, text: &str) -> Option<String> {
        let removed = self.uninstall(&[source(Some(text))], UNWANTED);
        let (mut edits, program) = removed.unwrap();
        assert_eq!(program, Some(PathBuf::from(PROGRAM)));
        edits.remove(0).after
    }
}

/// An engine, somebody else's handler of the name, and ours as the default.
const CASES: [(DropIn, &str, &str); 2] = [
    (
        CRIO,
        "[crio.runtime.runtimes.crust]\nruntime_path = \"/usr/bin/crun\"\n",
        "[crio.runtime]\ndefault_runtime = \"crust\"\n",
    ),
    (
        PODMAN,
        "[engine.runtimes]\ncrust = [\"/usr/bin/crun\"]\n",
        "[engine]\nruntime = \"crust\"\n",
    ),
];

#[test]
fn somebody_elses_handler_is_refused_in_our_file_and_beside_it() {
    for (engine, foreign, _) in CASES {
        let error = engine.refused(foreign).to_string();
        assert!(error.contains("/usr/bin/crun"), "{error}");
        let removal = engine.uninstall(&[source(Some(foreign))], UNWANTED);
        let error = removal.unwrap_err();
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");

        let files = [source(None), beside(foreign)];
        let error = engine.install(&files, WANTED).unwrap_err();
        assert!(matches!(error, HandlerError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains("/etc/beside.conf"), "{error}");
        // It alone is what was meant.
        let error = engine.uninstall(&files, UNWANTED).unwrap_err();
        assert!(error.to_string().contains("/etc/beside.conf"), "{error}");
        // Beside ours it is none of the removal's business, whichever is named first.
        let ours = engine.installed(None);
        for files in [
            [source(Some(&ours)), beside(foreign)],
            [source(Some(foreign)), beside(&ours)],
        ] {
            let (edits, _) = engine.uninstall(&files, UNWANTED).unwrap();
            let changed: Vec<_> = edits.iter().map(|it| it.before.as_deref()).collect();
            assert_eq!(changed, [Some(ours.as_str())]);
        }
    }
}

#[test]
fn the_default_is_not_removed_whichever_file_names_it() {
    for (engine, _, default) in CASES {
        let ours = engine.installed(None);
        let files = [source(Some(&ours)), beside(default)];
        let error = engine.uninstall(&files, UNWANTED).unwrap_err();
        assert!(matches!(error, HandlerError::Default { .. }), "{error}");
        assert!(error.to_string().contains("/etc/beside.conf"), "{error}");
    }
}

#[test]
fn the_handler_goes_from_every_file_but_a_packages() {
    for (engine, _, _) in CASES {
        let ours = engine.installed(None);
        let operators = format!("# Mine.\n{ours}");
        let packages = || Source::new("/usr/share/x.conf".into(), Some(ours.clone()));
        let files = [
            source(Some("")),
            beside(&operators),
            source(None),
            packages(),
        ];
        let (edits, program) = engine.uninstall(&files, UNWANTED).unwrap();
        assert_eq!(program, Some(PathBuf::from(PROGRAM)));
        let [edit] = edits.as_slice() else {
            panic!("not one edit: {edits:?}");
        };
        assert_eq!(edit.path, Path::new("/etc/beside.conf"));
        let left = edit.after.as_deref().unwrap();
        assert!(
            left.contains("# Mine.") && !left.contains(PROGRAM),
            "{left}"
        );
        let told = engine.kept(&files, UNWANTED).unwrap();
        let sentence = "/usr/share/x.conf has handler crust, and stays: it is its package's";
        assert_eq!(told, [sentence]);
        // It is the only one: nothing to remove.
        let files = [source(None), packages()];
        let nothing = (Vec::new(), None);
        assert_eq!(engine.uninstall(&files, UNWANTED).unwrap(), nothing);
        assert_eq!(engine.kept(&files, UNWANTED).unwrap(), [sentence]);
        // Whoever names it means it.
        let (edits, _) = engine.uninstall(&[packages()], UNWANTED).unwrap();
        assert_eq!(edits.len(), 1);
        assert_eq!(engine.kept(&[packages()], UNWANTED).unwrap(), [""; 0]);
    }
}

#[test]
fn of_several_handlers_in_our_file_the_last_takes_it_with_it() {
    for (engine, _, _) in CASES {
        let alone = engine.installed(None);
        let named = |handler| Wanted { handler, ..WANTED };
        for other in ["a-crust", "crust-crun"] {
            let both = engine.install(&[source(Some(&alone))], named(other));
            let both = both.unwrap().remove(0).after.unwrap();
            let left = engine.uninstalled(&both).unwrap();
            let expected = engine.install(&[source(None)], named(other)).unwrap();
            assert_eq!(Some(&left), expected[0].after.as_ref());
            let unwanted = Unwanted {
                handler: other,
                ..UNWANTED
            };
            let (edits, _) = engine.uninstall(&[source(Some(&both))], unwanted).unwrap();
            assert_eq!(edits[0].after.as_ref(), Some(&alone));
            let (edits, _) = engine.uninstall(&[source(Some(&left))], unwanted).unwrap();
            assert_eq!(edits[0].after, None);
        }
    }
}
