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
        let (edit, program) = removed.unwrap().unwrap();
        assert_eq!(program, PathBuf::from(PROGRAM));
        edit.after
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
        // Whose that is, is none of the removal's business.
        let files = [source(Some(&engine.installed(None))), beside(foreign)];
        assert!(engine.uninstall(&files, UNWANTED).is_ok());
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
