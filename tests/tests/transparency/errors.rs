//! runcrust's own errors before the delegate runs: they go where the delegate's errors go, in the same form, whichever
//! descriptors the caller has open.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::container::parse_log;
use runcrust_tests::{Bundle, Delegate, Node, Run, Runtime, on_each_delegate};
use serde_json::json;

use crate::compared_container::masked;

/// A node, and a bundle that both runcrust and the delegate refuse.
struct RefusedBundle {
    node: Node,
    bundle: Bundle,
}

impl RefusedBundle {
    fn new(delegate: Delegate) -> Self {
        let node = Node::new(delegate);
        let attached = node.handler().state_dir().join("attach/0");
        let config = json!({"Mounts": [{"source": attached}]}).to_string();
        let bundle = Bundle::plain(node.dir()).write_bytes(config.as_bytes());
        Self { node, bundle }
    }

    fn log(&self) -> PathBuf {
        self.node.dir().join("log")
    }

    /// Creates the container by a shell that first runs `shell`. `LOG` in `globals` is the path of the log.
    fn create(&self, runtime: &Runtime, shell: &str, globals: &str) -> Run {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &format!("{shell}\nexec \"$0\" \"$@\"")]);
        command.arg(runtime.program()).arg("--root");
        command.arg(self.bundle.runtime_root());
        let log = self.log();
        let word = |word: &str| word.replace("LOG", log.to_str().unwrap());
        command.args(globals.split_whitespace().map(word));
        command.args(["create", "--bundle"]).arg(self.bundle.path());
        command.arg(self.bundle.id()).env_clear();
        command.current_dir(self.node.dir().path());
        Run::capture(&mut command)
    }

    #[track_caller]
    fn refused(&self, shell: &str, globals: &str) -> Run {
        let run = self.create(&self.node.handler().runtime(), shell, globals);
        assert_eq!(run.status.code(), Some(1), "{run}");
        assert_eq!(run.stdout, "", "{run}");
        run
    }

    /// Asserts that the log has one error line, and that standard error is empty or has the same message. Then removes
    /// the log.
    #[track_caller]
    fn take_log_line(&self, stderr: &str) {
        let text = fs::read_to_string(self.log()).expect("a log");
        let lines = parse_log(&text);
        let [line] = lines.as_slice() else {
            panic!("not one entry: {text}");
        };
        assert_eq!(text.lines().count(), 1, "{text}");
        assert_eq!(line.level, "error");
        assert!(line.msg.contains("\"Mounts\""), "{text}");
        assert!(
            stderr.is_empty() || stderr == format!("{}\n", line.msg),
            "{stderr}"
        );
        fs::remove_file(self.log()).unwrap();
    }
}

const JSON: &str = "--log LOG --log-format json";

on_each_delegate! {
    fn in_a_json_log_an_error_is_one_line(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        for globals in [JSON, "--log=LOG --log-format=json --debug", "--log-format json --log LOG"] {
            let run = refused.refused("", globals);
            refused.take_log_line(&run.stderr);
            assert_ne!(run.stderr, "");
        }
        // The delegate writes the same keys, and appends to the log, too.
        let bare = refused.create(&Runtime::bare(delegate), "", JSON).failure();
        let _ = refused.refused("", JSON);
        let lines = parse_log(&fs::read_to_string(refused.log()).unwrap());
        assert_eq!(lines.len(), 2, "{bare}");
        assert!(lines.iter().all(|line| line.level == "error"), "{lines:?}");
    }

    fn in_a_text_log_an_error_has_the_delegates_form(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        for globals in ["--log LOG", "--log LOG --log-format text"] {
            let form = |runtime: &Runtime| {
                let run = refused.create(runtime, "", globals).failure();
                let text = fs::read_to_string(refused.log()).unwrap();
                fs::remove_file(refused.log()).unwrap();
                let sentence = run.stderr.trim_end();
                assert!(!sentence.is_empty(), "{run}");
                masked(&text.replace(&sentence.replace('"', "\\\""), "SENTENCE").replace(sentence, "SENTENCE"))
            };
            let bare = form(&Runtime::bare(delegate));
            assert_eq!(bare, form(&refused.node.handler().runtime()));
            let expected = match delegate {
                Delegate::Runc => "time=\"#-#-#T#:#:#Z\" level=error msg=\"SENTENCE\"\n",
                Delegate::Crun => "SENTENCE\n",
            };
            assert_eq!(bare, expected);
        }
    }

    fn without_a_log_an_error_is_one_line_on_stderr(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        for globals in ["", "--log-format json", "--log-format=text", "--debug"] {
            let run = refused.refused("", globals);
            assert_eq!(run.stderr.matches('\n').count(), 1, "{run}");
            assert!(run.stderr.contains(": config.json: ") && run.stderr.contains("hint: "), "{run}");
        }
    }

    fn if_the_log_cannot_be_written_the_error_is_on_stderr(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        let expected = refused.refused("", "").stderr;
        for log in ["/no/such/directory/log", "/dev/full", "/", "/proc/version"] {
            let run = refused.refused("", &format!("--log {log} --log-format json"));
            assert_eq!(run.stderr, expected, "{log}");
        }
    }

    /// containerd opens a sandbox's standard streams as `/dev/null`, read-only.
    fn if_stderr_cannot_be_written_the_error_is_in_the_log(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        for shell in [
            "exec </dev/null >/dev/null 2</dev/null",
            "exec 2</dev/null",
            "exec 2>&-",
            "exec <&- >&- 2>&-",
            "exec <&-",
            "exec 2>/dev/full",
            "umask 077; exec 2</dev/null",
            "trap '' PIPE; exec 2</dev/null",
        ] {
            let run = refused.refused(shell, JSON);
            refused.take_log_line(&run.stderr);
            // Without a log only the exit status reports the error.
            let _ = refused.refused(shell, "");
            assert!(!refused.log().exists());
        }
    }

    fn a_closed_stderr_pipe_does_not_kill_a_refused_create(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        let pipe = refused.node.dir().join("pipe");
        // A pipe whose only reader has been closed.
        let shell = format!("mkfifo {pipe:?}; exec 3<>{pipe:?} 2>{pipe:?} 3>&-; rm {pipe:?}");
        let run = refused.refused(&shell, JSON);
        refused.take_log_line(&run.stderr);
    }

    fn a_closed_stderr_pipe_does_not_kill_a_failing_exec(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        let name = delegate.program();
        let program = refused.node.dir().join(name.file_name().unwrap());
        fs::write(&program, "#!/nonexistent\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        refused.node.handler().set_delegate(&program);
        let pipe = refused.node.dir().join("pipe");
        let script = format!(
            "mkfifo {pipe:?}; exec 3<>{pipe:?} 2>{pipe:?} 3>&-; rm {pipe:?}; exec \"$0\" state none"
        );
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &script]).arg(refused.node.handler().path());
        let run = Run::capture(&mut command);
        assert_eq!(run.status.code(), Some(1), "{run}");
    }

    fn an_invalid_configuration_is_reported_in_the_callers_log(delegate: Delegate) {
        let refused = RefusedBundle::new(delegate);
        refused.node.handler().reconfigure("unstagd = \"pass\"");
        let run = refused.refused("", JSON);
        let lines = parse_log(&fs::read_to_string(refused.log()).unwrap());
        assert_eq!(lines.len(), 1, "{run}");
        assert!(lines[0].msg.contains("unstagd"), "{lines:?}");
    }
}
