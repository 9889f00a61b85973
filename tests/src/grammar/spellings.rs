//! The parts that rows are built from.

/// Valid and invalid ways to name a bundle.
pub(super) const BUNDLES: [&str; 31] = [
    "--bundle A",
    "-b A",
    "--bundle=A",
    "-b=A",
    "-bA",
    "-bundle A",
    "-bundle=A",
    "--b A",
    "--b=A",
    "--bun A",
    "--bun=A",
    "--bundles A",
    "---bundle A",
    "--BUNDLE A",
    "-B A",
    "--bundle ''",
    "--bundle=",
    "-b ''",
    "-b=",
    "--bundle A/",
    "--bundle ./A",
    "--bundle B/../A",
    "--bundle @/A",
    "--bundle=A=B",
    "--bundle ' A'",
    "'--bundle=A '",
    "--bundle -A",
    "--bundle=-A",
    "--bundle --",
    "--bundle -b",
    "",
];

/// Positions of a bundle's option among the other arguments.
pub(super) const FRAMES: [&str; 16] = [
    "{} x",
    "x {}",
    "{} -- x",
    "-- {} x",
    "x -- {}",
    "-- x {}",
    "{} x --",
    "{}",
    "{} x y",
    "x y {}",
    "--pid-file p {} x",
    "{} --pid-file p x",
    "{} --no-pivot x",
    "x {} --pid-file p",
    "{} -- -x",
    "{} -",
];

/// Arguments with more than one bundle, of which the last, the first, or none is used.
pub(super) const REPEATED: [&str; 13] = [
    "-b A -b B x",
    "-b A --bundle B x",
    "--bundle=A --bundle=B x",
    "--bundle A --bundle= x",
    "--bundle A --bundle '' x",
    "--bundle A x --bundle B",
    "x -b A -b B",
    "-b A -b x",
    "--bundle A --bundle x",
    "--bundle A x --bundle",
    "A x --bundle",
    "A x -b",
    "A --bundle",
];

/// Everything before the subcommand.
pub(super) const FRONTS: [&str; 40] = [
    "",
    "--",
    "-",
    "''",
    "' '",
    "-- --",
    "-- --debug",
    "--debug --",
    "--debug=true",
    "--debug=false",
    "--debug=zz",
    "--debug false",
    "-debug",
    "---debug",
    "--DEBUG",
    "--systemd-cgroup=false",
    "--root create",
    "--root=create",
    "--root --",
    "--root ''",
    "--root=",
    "--log l",
    "--log=l",
    "-log l",
    "--log l --log m",
    "--log=",
    "--log ''",
    "--log @/l",
    "--log A/l",
    "--log l --log-format json",
    "--log-format=json --log=l",
    "--log l --log-format json --log-format text",
    "--log l --log-format=",
    "--log file:l",
    "--log file:@/l",
    "--rootless true",
    "--rootless=auto --debug",
    "--help=false",
    "--version=false",
    "--frob=x",
];

/// Joined short options, which only crun has.
pub(super) const CLUSTERS: [&str; 14] = [
    "run -db A x",
    "run -dbA x",
    "run -bdA x",
    "run -bd A x",
    "run -bA -d x",
    "run -dd -bA x",
    "run -d-b A x",
    "run -db=A x",
    "run -dfcfg x",
    "run -dfcfg -bA x",
    "run -bAfcfg x",
    "run -?bA x",
    "run -d?bA x",
    "create -db A x",
];

/// Ways to name a configuration other than the bundle's `config.json`.
pub(super) const CONFIGURATIONS: [&str; 12] = [
    "-f cfg x",
    "-fcfg x",
    "-f=cfg x",
    "--config cfg x",
    "--config=cfg x",
    "-f cfg -b A x",
    "-b A -f cfg x",
    "-f @/cfg -b A x",
    "-f config.json -b A x",
    "-f ./config.json -b A x",
    "-f A/config.json -b A x",
    "-f '' -b A x",
];

/// Words in a subcommand's position that create no container.
pub(super) const OTHERS: &str = "state start kill delete ps list pause resume update events checkpoint exec features help \
    h mount creat creates Create CREATE ru runs restor create, no-such-command mounts";

/// The words of random rows.
pub(super) const TOKENS: &str = "x A B create run state -- - '' -b -b --bundle --bundle -b=B -bA --bundle=A --bundle=B \
    --b=A -d --detach --no-pivot --no-pivot=false --no-new-keyring --pid-file --pid-file=p \
    --console-socket --preserve-fds --root --root=r --debug --help --help=false -h --frob";
