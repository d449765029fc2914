//! Commands and Corefiles in documents: the output in the document is the program's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use tests::{
    Action, Says, Upstream, ask, assert_contains, binary, eventually, isolated, now, output, skip, tempdir,
    tool,
};

use super::{PATIENCE, WRITABLE, check, documents, read, root, stderr};

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
    assert!(count > 2, "{count} Corefiles in the documents");
}

/// Commands in documents that need no server print what the documents show.
#[test]
fn documented_commands_without_a_server() {
    let shell = Shell::new();
    let steps: Vec<Step> = steps();
    for document in ["README.md", "docs/command-line.md", "docs/node-resolver.md"] {
        assert!(steps.iter().any(|step| step.document == document), "{document} has no command");
    }
    let steps: Vec<Step> = steps.into_iter().filter(Step::is_about_a_corefile).collect();
    assert!(steps.len() > 5, "{} commands in the documents", steps.len());
    for step in steps {
        assert_eq!(shell.run(&step.command), step.printed, "{}: {}", step.document, step.command);
    }
}

#[test]
fn the_commands_of_the_documents_serve() {
    isolated(|| {
        let test = "the_commands_of_the_documents_serve";
        fs::create_dir_all("/etc/localdns").unwrap();
        fs::write("/etc/localdns/hosts", "").unwrap();
        // The name server in the system's resolv.conf.
        let _upstream = Upstream::at("127.0.0.1:53".parse().unwrap(), |asked| {
            Action::Reply(match asked.name.as_str() {
                "a.root-servers.net." => Says::answer("a.root-servers.net. 60 IN A 198.41.0.4"),
                _ => Says::rcode(5),
            })
        });
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
                    step.printed.iter().all(|printed| lines.any(|line| line == *printed)).then_some(())
                });
                serving.push(started);
            } else if let Some(tool_of) = ["dig", "curl"].into_iter().find(|tool| command.starts_with(tool))
                && !tool(test, tool_of)
            {
                skip(test, command);
            } else {
                if command.contains("NAMESERVER=169.254.10.10") {
                    served_from_the_hosts_file();
                }
                let deadline = now() + PATIENCE;
                let mut printed = shell.run(command);
                while !step.is_printed(&printed) {
                    assert!(now() < deadline, "{}: {command}: {printed:#?}", step.document);
                    printed = shell.run(command);
                }
            }
        }
        assert_eq!(serving.len(), 2, "one command for root, one for everybody");
        assert_contains!(read("Cargo.toml"), "default-members = [\"server\"]\n");
    });
}

/// Waits until the server answers every line of the hosts file: changes are reported only once, so
/// a first run that finds half of the names has no second that finds all.
fn served_from_the_hosts_file() {
    let server = "169.254.10.10:53".parse().expect("an address");
    for line in fs::read_to_string("/etc/localdns/hosts").expect("the documents made it").lines() {
        let (address, name) = line.split_once(' ').expect("an address and a name");
        eventually(name, PATIENCE, || (ask(server, name, "A").short() == [address]).then_some(()));
    }
}

/// One command of a document, and its output there.
struct Step {
    document: String,
    command: String,
    printed: Vec<String>,
}

impl Step {
    /// Whether it needs only the binary and a file.
    fn is_about_a_corefile(&self) -> bool {
        // Commands on the machine's hosts file need a private /etc.
        !self.command.ends_with(" &")
            && !self.command.contains("node-resolver")
            && (self.command.contains("localdns check")
                || self.command.starts_with("cargo run -- check")
                || self.command.starts_with("localdns "))
    }

    /// Whether the lines are those of the document. Counters may be higher, as a repeated command
    /// counts again.
    fn is_printed(&self, lines: &[String]) -> bool {
        let counted = |line: &str| {
            let (series, count) = line.rsplit_once(' ')?;
            Some((series.to_owned(), count.parse::<u64>().ok()?))
        };
        let same = |(line, printed): (&String, &String)| match (counted(line), counted(printed)) {
            (Some((series, count)), Some((other, least))) => series == other && count >= least,
            _ => line == printed,
        };
        match self.command.starts_with("curl ") {
            true => lines.len() == self.printed.len() && lines.iter().zip(&self.printed).all(same),
            false => lines == self.printed,
        }
    }
}

/// All commands in the documents, behind `$`, or behind `#` for root.
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
                            printed: Vec::new(),
                        });
                    }
                    None => {
                        let step = steps
                            .last_mut()
                            .unwrap_or_else(|| panic!("{document}: no command printed {line}"));
                        step.printed.push(words(&line.replace("x86_64", std::env::consts::ARCH)));
                    }
                }
            }
        }
    }
    steps
}

/// Runs commands of documents in the repository; `localdns` and `cargo run --` run the
/// binary under test.
struct Shell {
    directory: TempDir,
    path: OsString,
}

impl Shell {
    fn new() -> Self {
        let directory = tempdir();
        symlink(binary(), directory.path().join("localdns")).expect(WRITABLE);
        let cargo = directory.path().join("cargo");
        let script = "#!/bin/sh\n[ \"$1 $2\" = 'run --' ] && shift 2 && exec localdns \"$@\"\n";
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

    /// The output lines of a command, without those that depend on this machine.
    fn run(&self, line: &str) -> Vec<String> {
        let printed = output(self.command(line), PATIENCE).stdout;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        printed
            .lines()
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

/// A command that serves; it is killed when dropped.
struct Serving {
    child: Child,
    log: PathBuf,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails for a process that has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The line with single spaces.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The contents of the code blocks in that language.
pub(super) fn fenced(text: &str, language: &str) -> Vec<String> {
    let open = format!("```{language}\n");
    text.split(open.as_str())
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

const TEST_COMMAND: &str = "cargo test --workspace";
