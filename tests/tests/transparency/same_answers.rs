//! Texts, features and errors of the real delegates, with and without runcrust before them.

use runcrust_tests::{Bundle, Node, on_each_delegate};

use crate::compared_container::Call;
use crate::container_pair::ContainerPair;

/// Commands that print texts or features. Their output must be the same to the byte.
const TEXTS: &str = "
    --version
    -v
    features
    --debug features
    --help
    -h
    help
    help create
    h state
    --usage
    create --help
    create --bundle /no/such --help id
    exec --help
    update -h
    checkpoint --help
    restore --help
    --help create
    --version create -b . id
    -?
    list
    list --format json
    list -q
";

/// Commands with errors, which both runtimes must report equally.
const FAILING_COMMANDS: &str = "
    state nobody
    start nobody
    kill nobody
    kill nobody 9
    kill --all nobody 9
    kill -a nobody KILL
    delete nobody
    delete --force nobody
    ps nobody
    ps --format json nobody
    exec nobody true
    exec --process /no/such/file nobody
    exec --detach --tty nobody sh
    pause nobody
    resume nobody
    events nobody
    events --stats nobody
    update --resources=/no/such/file nobody
    update --resources - nobody
    update --memory 1 nobody
    checkpoint --image-path @WORK/i --work-path @WORK/w nobody
    restore --image-path @WORK/i --bundle /no/such/bundle nobody
    no-such-command
    no-such-command --bundle @BUNDLE id
    creat --bundle @BUNDLE id
    state
    state one two
    state --no-such-flag nobody
    --no-such-flag
    --no-such-flag state nobody
    --log-format nonsense state nobody
    --rootless nonsense state nobody
    create
    create --bundle @BUNDLE
    create --bundle @BUNDLE one two
    create --bundle /no/such/bundle c
    create --bundle @WORK c
    create --bundle @BUNDLE @ID/slash
    create --bundle @BUNDLE --pid-file /no/such/directory/pid @ID
    create --bundle @BUNDLE --preserve-fds nonsense @ID
    create --no-pivot=nonsense --bundle @BUNDLE ID
    create --bundle @BUNDLE @ID
    run --bundle @BUNDLE @ID
    run
";

on_each_delegate! {
    fn version_help_and_features_are_the_delegates(delegate: Delegate) {
        let pair = ContainerPair::plain(delegate, |bundle| bundle);
        let texts = TEXTS.lines().skip(1).map(str::trim);
        for line in texts {
            let call = Call { exact: true, ..Call::default() };
            let answer = pair.assert_same_call(Call { line, ..call });
            if line == "--version" {
                let first = format!("{delegate} version ");
                assert!(answer.stdout.starts_with(&first), "{answer:?}");
            }
            let _ = pair.assert_same(&format!("--root @ROOT --log @LOG --log-format json {line}"));
        }
    }

    fn failures_are_the_delegates(delegate: Delegate) {
        // A container that can be created but not started, so that `create` gets as far as it can before it fails.
        let pair = ContainerPair::plain(delegate, |bundle| bundle.args(["/no/such/program"]));
        let lines = FAILING_COMMANDS.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines {
            for globals in [
                "--root @ROOT",
                "--root @ROOT --log @LOG",
                "--root=@ROOT --log=@LOG --log-format=json",
            ] {
                let _ = pair.assert_same(&format!("{globals} {line}"));
            }
        }
    }

    fn a_container_without_volumes_leaves_no_files(delegate: Delegate) {
        let node = Node::new(delegate);
        let data = node.dir().subdir("data");
        let bundle = Bundle::plain(node.dir()).bind(&data, "/data", &[]).write();
        let container = node.run(&bundle);
        let _ = container.sh("echo hello > /data/file");
        container.stop();
        let _ = container.delete().success();
        let _ = container.delete_force().success();
        assert_eq!(container.log_lines(), []);
        for path in [node.handler().crust_root(), node.handler().state_dir()] {
            assert!(!path.exists(), "{} was created", path.display());
        }
    }
}
