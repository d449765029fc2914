//! The documents hold what they say: every example runs, every Corefile can be served, the unit is what it claims.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tests::{
    Action, Options, Says, Server, Upstream, ask, assert_contains, binary, eventually, fresh_ip, isolated,
    output, skip, tempdir, tool,
};

#[test]
fn the_example_corefile_answers_from_hosts_and_asks_its_upstream() {
    let upstream =
        Upstream::start(fresh_ip(), |_| Action::Reply(Says::answer("a.example. 60 IN A 192.0.2.1")));
    let ip = fresh_ip();
    let hosts = tempdir();
    let path = hosts.path().join("hosts");
    fs::write(&path, "192.0.2.99 canary.localdns.test\n").unwrap();
    let corefile = read("Corefile.example").replace("/etc/localdns/hosts", &path.to_string_lossy());
    let options = Options::default()
        .env("LOCALDNS_ADDRESS", &ip.to_string())
        .env("LOCALDNS_PORT", "5399")
        .env("LOCALDNS_UPSTREAM", &upstream.word());
    let server = Server::start_with(&corefile, options);
    assert_eq!(ask((ip, 5399).into(), "canary.localdns.test", "A").short(), ["192.0.2.99"]);
    assert_eq!(ask((ip, 5399).into(), "a.example", "A").short(), ["192.0.2.1"]);
    server.wait_for_log("\"A IN a.example. udp", Duration::from_secs(2));
}

#[test]
fn every_directive_of_the_example_can_be_switched_on_alone() {
    let example = Example::read();
    assert!(example.off.len() > 50, "{} directives in comments", example.off.len());
    for off in &example.off {
        let mut on = vec![off];
        on.extend(example.off.iter().filter(|other| off.needs(other)));
        let text = example.with(&on);
        let checked = check(&text);
        assert!(checked.status.success(), "line {}: {}\n{}", off.line + 1, off.text, stderr(&checked));
        // It is read, not passed over: a misspelt one is refused.
        if off.is_server_block() {
            continue;
        }
        let broken: Vec<String> = text
            .lines()
            .enumerate()
            .map(|(line, text)| match line == off.line {
                true => format!("zz{}", text.trim_start()),
                false => text.to_owned(),
            })
            .collect();
        assert_contains!(stderr(&check(&broken.join("\n"))), format!(":{}:1: ", off.line + 1));
    }
}

#[test]
fn every_directive_of_the_example_serves_with_all_of_its_properties() {
    let example = Example::read();
    for off in example.off.iter().filter(|off| off.above.is_empty()) {
        let inside =
            |other: &&Off| other.line == off.line || other.above.contains(&off.line) || off.needs(other);
        let on: Vec<&Off> = example.off.iter().filter(inside).collect();
        let entry = "192.0.2.98 runs.localdns.test\n        fallthrough\n    }";
        let corefile = example.with(&on).replacen("fallthrough\n    }", entry, 1);
        let ip = fresh_ip();
        let options = Options::default()
            .args(["-status", ""])
            .env("LOCALDNS_ADDRESS", &ip.to_string())
            .env("LOCALDNS_PORT", "5399")
            .env("LOCALDNS_UPSTREAM", "192.0.2.53");
        let server = Server::start_with(&corefile, options);
        let reply = ask((ip, 5399).into(), "runs.localdns.test", "A");
        assert_eq!(reply.short(), ["192.0.2.98"], "{}\n{}", off.text, server.log_text());
    }
}

#[test]
fn the_example_holds_every_directive_and_property() {
    let example = Example::read();
    let all: Vec<&Off> = example.off.iter().collect();
    let text = example.with(&all);
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let word = line.split_whitespace().next().unwrap_or_default().to_owned();
        if word == "}" {
            inside.pop();
            continue;
        }
        found.push((inside.get(1).cloned().unwrap_or_default(), word.clone()));
        if line.ends_with('{') {
            inside.push(word);
        }
    }
    let holds = |directive: &str, word: &str| found.contains(&(directive.to_owned(), word.to_owned()));
    let served = output(localdns(&["-plugins"]), PATIENCE);
    for directive in String::from_utf8(served.stdout).unwrap().lines() {
        assert!(holds("", directive), "Corefile.example does not have {directive}");
    }
    for (directive, properties) in PROPERTIES {
        for property in *properties {
            assert!(holds(directive, property), "Corefile.example does not have {property} of {directive}");
        }
    }
}

#[test]
fn corefiles_in_documents_can_be_served() {
    let mut count = 0;
    for (document, text) in documents() {
        for block in fenced(&text, "corefile") {
            let checked = check(&block);
            assert!(checked.status.success(), "{document}:\n{block}\n{}", stderr(&checked));
            count += 1;
        }
    }
    assert!(count > 1, "{count} Corefiles in the documents");
}

#[test]
fn what_the_documents_say_without_a_server_is_what_is_said() {
    let shell = Shell::new();
    let steps: Vec<Step> = steps().into_iter().filter(|step| step.is_about_a_corefile()).collect();
    assert!(steps.len() > 5, "{} commands in the documents", steps.len());
    for step in steps {
        assert_eq!(shell.says(&step.command), step.said, "{}: {}", step.document, step.command);
    }
}

#[test]
fn the_commands_of_the_readme_serve() {
    isolated(|| {
        let test = "the_commands_of_the_readme_serve";
        fs::create_dir_all("/etc/localdns").unwrap();
        fs::write("/etc/localdns/hosts", "").unwrap();
        let shell = Shell::new();
        let mut serving = Vec::new();
        for step in steps().into_iter().filter(|step| !step.is_about_a_corefile()) {
            let command = step.command.as_str();
            if command == TEST_COMMAND {
                assert_contains!(read(".ci/run"), format!("\n{TEST_COMMAND}\n"));
            } else if let Some(command) = command.strip_suffix(" &") {
                let started = shell.start(command);
                eventually(command, PATIENCE, || {
                    let log = fs::read_to_string(&started.log).ok()?;
                    let mut lines = log.lines().map(words);
                    step.said.iter().all(|said| lines.any(|line| line == *said)).then_some(())
                });
                serving.push(started);
            } else if command.starts_with("dig ") && !tool(test, "dig") {
                skip(test, command);
            } else {
                eventually(command, PATIENCE, || (shell.says(command) == step.said).then_some(()));
            }
        }
        assert_eq!(serving.len(), 2, "one command for root, one for everybody");
        assert_contains!(read("Cargo.toml"), "default-members = [\"server\"]\n");
    });
}

#[test]
fn links_in_documents_lead_somewhere() {
    let slug = |heading: &str| heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    for (document, text) in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            assert!(path.is_empty() || folder.join(path).exists(), "{document}: {link}");
            let found = text.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
            assert!(anchor.is_empty() || found, "{document}: {link}");
        }
    }
}

#[test]
fn long_tests_are_listed_with_their_commands() {
    let text = read("CONTRIBUTING.md");
    let ignored = ignored_tests();
    for (target, name) in &ignored {
        let command =
            format!("`cargo test --release -p tests --test {target} {name} -- --ignored --nocapture`");
        assert_contains!(text, command);
    }
    assert_eq!(text.matches(" -- --ignored").count(), ignored.len());
}

#[test]
fn the_unit_is_what_the_readme_says() {
    let unit = read("deploy/localdns.service");
    let settings = settings(&unit);
    for (section, key, value) in UNIT {
        assert_eq!(settings.get(&(*section, *key)).map(Vec::as_slice), Some(&[*value][..]), "{key}");
    }
    let test = "the_unit_is_what_the_readme_says";
    if !tool(test, "systemd-analyze") {
        return;
    }
    let directory = tempdir();
    let path = directory.path().join("localdns.service");
    fs::write(&path, unit.replace("/usr/local/bin/localdns", &binary().to_string_lossy())).unwrap();
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no"]).arg(&path);
    let verified = output(command, PATIENCE);
    let said = stderr(&verified);
    assert!(verified.status.success() && !said.contains("localdns.service:"), "{said}");
}

#[test]
fn the_timers_unit_does_one_round_every_quarter_of_an_hour() {
    let (unit, timer) = (read("deploy/localdns-refresh.service"), read("deploy/localdns-refresh.timer"));
    let (unit, timer) = (settings(&unit), settings(&timer));
    let command = unit[&("Service", "ExecStart")][0];
    let args = command.strip_prefix("/usr/local/bin/localdns ").unwrap_or_else(|| panic!("{command}"));
    let directory = tempdir();
    let corefile = directory.path().join("Corefile");
    fs::write(&corefile, ". {\nwhoami\n}\n").unwrap();
    let args = args.replace("/etc/localdns/Corefile", &corefile.to_string_lossy());
    let done = output(localdns(&args.split(' ').collect::<Vec<_>>()), PATIENCE);
    assert!(done.status.success() && stderr(&done) == "there is no name to refresh\n", "{done:?}");
    assert_eq!(unit[&("Service", "Type")], ["oneshot"]);
    assert_eq!(unit[&("Service", "ReadWritePaths")], ["/etc/localdns"]);
    for (key, value) in [("OnBootSec", "0"), ("OnUnitActiveSec", "15min"), ("RandomizedDelaySec", "60")] {
        assert_eq!(timer[&("Timer", key)], [value]);
    }
}

/// The target and the name of each test that runs only when asked for.
fn ignored_tests() -> Vec<(String, String)> {
    let folder = root().join("tests/tests");
    let mut paths = vec![folder.clone()];
    let mut found = Vec::new();
    while let Some(path) = paths.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            paths.extend(entries.map(|entry| entry.expect("a folder can be read").path()));
            continue;
        }
        let inside = path.strip_prefix(&folder).expect("it was found there");
        let target = inside.iter().next().map(Path::new).and_then(Path::file_stem).unwrap_or_default();
        let text = fs::read_to_string(&path).expect("a test can be read");
        for after in text.split("\n#[ignore").skip(1) {
            let name = after.split_once("\nfn ").and_then(|(_, name)| name.split_once('('));
            let (name, _) = name.expect("a test follows its attributes");
            found.push((target.to_string_lossy().into_owned(), name.to_owned()));
        }
    }
    found
}

/// The settings of a systemd unit by section and key.
fn settings(unit: &str) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut settings: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut section = "";
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("not a setting: {line}"));
        // An empty value is none at all, as of the capabilities.
        assert!(!section.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric()), "{line}");
        settings.entry((section, key)).or_default().push(value);
    }
    settings
}

/// Corefile.example, with what stands in it behind a `#`.
struct Example {
    lines: Vec<String>,
    off: Vec<Off>,
}

/// A directive, property or server block that is switched off.
#[derive(Debug)]
struct Off {
    line: usize,
    /// Without `#` and indentation.
    text: String,
    indent: usize,
    /// The line of its `}`.
    close: Option<usize>,
    /// The lines of the braces around it that are switched off as well, the outermost first.
    above: Vec<usize>,
}

impl Example {
    fn read() -> Self {
        let lines: Vec<String> = read("Corefile.example").lines().map(str::to_owned).collect();
        let mut off: Vec<Off> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        for (line, text) in lines.iter().enumerate() {
            let bare = text.trim_start();
            // A sentence has a blank behind its `#`.
            let Some(text_off) =
                bare.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| !c.is_whitespace()))
            else {
                continue;
            };
            if text_off == "}" {
                let opened = open.pop().unwrap_or_else(|| panic!("line {}: nothing is open", line + 1));
                off.iter_mut().filter(|off| off.line == opened).for_each(|off| off.close = Some(line));
                continue;
            }
            let above = open.clone();
            let indent = text.len() - bare.len();
            off.push(Off { line, text: text_off.to_owned(), indent, close: None, above });
            if text_off.ends_with(" {") {
                open.push(line);
            }
        }
        assert!(open.is_empty(), "line {} is never closed", open[0] + 1);
        Self { lines, off }
    }

    /// The text with these switched on, and the braces around them.
    fn with(&self, on: &[&Off]) -> String {
        let mut lines = self.lines.clone();
        let around = self.off.iter().filter(|off| on.iter().any(|on| on.above.contains(&off.line)));
        for line in on.iter().copied().chain(around).flat_map(|off| [Some(off.line), off.close]).flatten() {
            if lines[line].trim_start().starts_with('#') {
                lines[line] = lines[line].replacen('#', "", 1);
            }
        }
        lines.join("\n") + "\n"
    }
}

impl Off {
    fn is_server_block(&self) -> bool {
        self.indent == 0
    }

    /// Whether this one is refused without the other.
    fn needs(&self, other: &Self) -> bool {
        let pairs = [("serve_stale_policy ", "serve_stale "), ("timeouts {", "read ")];
        pairs.iter().any(|(one, needed)| self.text.starts_with(one) && other.text.starts_with(needed))
    }
}

/// One command of a document, and what it says there.
struct Step {
    document: String,
    command: String,
    said: Vec<String>,
}

impl Step {
    /// Whether it needs no more than the binary and a file.
    fn is_about_a_corefile(&self) -> bool {
        // The hosts file is the machine's: that is for a test with an /etc of its own.
        !self.command.ends_with(" &")
            && !self.command.contains("node-resolver")
            && (self.command.contains("localdns check") || self.command.starts_with("localdns "))
    }
}

/// Every command in the documents: behind `$`, or behind `#` where it is root's.
fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (document, text) in documents() {
        for block in fenced(&text, "console") {
            for line in block.lines() {
                match line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")) {
                    Some(command) => {
                        steps.push(Step {
                            document: document.clone(),
                            command: command.to_owned(),
                            said: Vec::new(),
                        });
                    }
                    None => {
                        let step = steps
                            .last_mut()
                            .unwrap_or_else(|| panic!("{document}: {line} is said by nobody"));
                        step.said.push(words(&line.replace("x86_64", std::env::consts::ARCH)));
                    }
                }
            }
        }
    }
    steps
}

/// Where commands of documents run: in the repository, `localdns` and `cargo run --release --` being the binary under test.
struct Shell {
    directory: TempDir,
    path: OsString,
}

impl Shell {
    fn new() -> Self {
        let directory = tempdir();
        symlink(binary(), directory.path().join("localdns")).expect(WRITABLE);
        let cargo = directory.path().join("cargo");
        let script = "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] && shift 3 && exec localdns \"$@\"\n";
        fs::write(&cargo, script).expect(WRITABLE);
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect(WRITABLE);
        let mut path = directory.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Self { directory, path }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec 2>&1; {line}")).current_dir(root()).env("PATH", &self.path);
        command.env_remove("LOCALDNS_ADDRESS").env_remove("LOCALDNS_PORT").env_remove("LOCALDNS_UPSTREAM");
        command
    }

    /// The lines that a command says, without what they tell of this machine.
    fn says(&self, line: &str) -> Vec<String> {
        let said = output(self.command(line), PATIENCE).stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines()
            .filter(|line| !line.contains("plugin/hosts: Cannot read /etc/localdns/hosts"))
            .map(words)
            .collect()
    }

    /// Starts a command that serves.
    fn start(&self, line: &str) -> Serving {
        let name: String = line.chars().filter(char::is_ascii_alphanumeric).collect();
        let log = self.directory.path().join(name);
        let file = File::create(&log).expect(WRITABLE);
        let mut command = self.command(&format!("exec env {line}"));
        command.stdin(Stdio::null()).stdout(file);
        Serving { child: command.spawn().expect("a shell starts"), log }
    }
}

/// A command that serves, until its value ends.
struct Serving {
    child: Child,
    log: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The line with single blanks.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The contents of the blocks of that language.
fn fenced(text: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    text.split(open.as_str())
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

/// Every document, by its path.
fn documents() -> Vec<(String, String)> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in ["", "docs"] {
        let entries = fs::read_dir(root().join(folder)).expect("the folder is there");
        paths.extend(
            entries.map(|entry| Path::new(folder).join(entry.expect("a folder can be read").file_name())),
        );
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.sort();
    assert!(paths.len() > 4, "{paths:?}");
    paths
        .into_iter()
        .map(|path| path.to_string_lossy().into_owned())
        .map(|path| (path.clone(), read(&path)))
        .collect()
}

fn check(corefile: &str) -> Output {
    let directory = tempdir();
    let path = directory.path().join("Corefile");
    fs::write(&path, corefile).expect(WRITABLE);
    let mut command = localdns(&["check", "-conf"]);
    command.arg(path).env("LOCALDNS_UPSTREAM", "192.0.2.53");
    output(command, PATIENCE)
}

fn localdns(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(args);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// Why a file of a test can be made.
const WRITABLE: &str = "the test's directory is writable";

const PATIENCE: Duration = Duration::from_secs(10);

const TEST_COMMAND: &str = "cargo test --workspace";

/// The properties that CoreDNS's documents list and that are served.
const PROPERTIES: &[(&str, &[&str])] = &[
    ("bind", &["except"]),
    (
        "cache",
        &[
            "denial",
            "disable",
            "keepttl",
            "prefetch",
            "serve_stale",
            "serve_stale_policy",
            "servfail",
            "success",
        ],
    ),
    ("errors", &["consolidate", "stacktrace"]),
    (
        "forward",
        &[
            "except",
            "expire",
            "failfast_all_unhealthy_upstreams",
            "failover",
            "force_tcp",
            "health_check",
            "max_age",
            "max_concurrent",
            "max_connect_attempts",
            "max_fails",
            "max_idle_conns",
            "next",
            "next_on_nodata",
            "policy",
            "prefer_udp",
            "read_timeout",
            "resolver",
            "source_address",
            "tls",
            "tls_servername",
        ],
    ),
    ("health", &["lameduck"]),
    (
        "hosts",
        &[
            "fallthrough",
            "fallthrough_unsupported",
            "max_age",
            "no_reverse",
            "refresh",
            "refresh_family",
            "refresh_interval",
            "refresh_sinkhole",
            "refresh_via",
            "reload",
            "ttl",
        ],
    ),
    ("log", &["class"]),
    ("prometheus", &["runtime_metrics"]),
    ("ready", &["monitor"]),
    (
        "template",
        &["additional", "answer", "authority", "ederror", "expr", "fallthrough", "match", "rcode", "var"],
    ),
    ("timeouts", &["idle", "maxtcpqueries", "read", "write"]),
];

/// What the unit must say, each once.
const UNIT: &[(&str, &str, &str)] = &[
    ("Unit", "StartLimitIntervalSec", "0"),
    ("Service", "Type", "notify"),
    ("Service", "NotifyAccess", "main"),
    (
        "Service",
        "ExecStart",
        "/usr/local/bin/localdns -conf /etc/localdns/Corefile -pidfile /run/localdns.pid",
    ),
    ("Service", "ExecReload", "/bin/kill -HUP $MAINPID"),
    ("Service", "Restart", "always"),
    ("Service", "RestartSec", "100ms"),
    ("Service", "WatchdogSec", "60"),
    ("Service", "OOMScoreAdjust", "-999"),
    ("Service", "LimitNOFILE", "65536"),
    ("Service", "CapabilityBoundingSet", "CAP_NET_BIND_SERVICE CAP_NET_ADMIN"),
    ("Service", "AmbientCapabilities", "CAP_NET_BIND_SERVICE CAP_NET_ADMIN"),
    ("Service", "NoNewPrivileges", "yes"),
    ("Service", "ProtectSystem", "strict"),
    ("Service", "EnvironmentFile", "-/etc/localdns/environment"),
    ("Service", "ReadWritePaths", "/run -/etc/localdns"),
];
