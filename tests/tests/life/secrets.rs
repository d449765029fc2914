//! Errors reveal no value of a variable and no word of an imported file, in the log or over HTTP.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tests::{
    Options, Server, assert_contains, binary, fresh_ip, http_get, isolated, output, port, run, tempdir,
};

use super::text;

const PATIENCE: Duration = Duration::from_secs(10);
const TOKEN: &str = "s3cr3t=hunter2";
/// Each piece of the token that an error could quote.
const PIECES: [&str; 2] = ["s3cr3t", "hunter2"];

/// Lines of a server block that the value of `TOKEN` makes invalid.
const LINES: &[&str] = &[
    "{$TOKEN}",
    "{%TOKEN%} x",
    "reload 10s 5s {$TOKEN}",
    "cache {\n{$TOKEN} 5\n}",
    "cache {\nsuccess {$TOKEN}\n}",
    "forward . tls://{$TOKEN}",
    "forward . 192.0.2.1 {\npolicy x{$TOKEN}y\n}",
    "forward . 192.0.2.1 {\nhealth_check {$TOKEN}\n}",
    "hosts {\n{$TOKEN} x\n}",
    "hosts {\nttl {$TOKEN}\n}",
    "rewrite name regex ({$TOKEN} b",
    "rewrite {$TOKEN} a b",
    "rewrite name a ..{$TOKEN}",
    "acl {\nblock type {$TOKEN}\n}",
    "acl {\nblock net {$TOKEN}\n}",
    "template IN A {\nanswer \"{{ {$TOKEN} }}\"\n}",
    "template IN A {\nexpr 1 + {$TOKEN} (\n}",
    "template IN A {\nmatch [{$TOKEN}\n}",
    "bind {$TOKEN}",
    "log {$TOKEN} }",
    "import {$TOKEN}",
    "import /nowhere/{$TOKEN}*[",
    "tls {$TOKEN} key.pem",
    "health {$TOKEN}",
    "whoami {$TOKEN}",
];

/// Whether a text contains a piece of the token.
fn shows_secret(text: &str) -> bool {
    PIECES.iter().any(|piece| text.contains(piece))
}

#[test]
fn failed_reload_prints_no_variable() {
    let ip = fresh_ip();
    let good = format!(".:{} {{\nbind {ip}\nprometheus {ip}:9153\nwhoami\n}}\n", port());
    let directory = tempdir();
    let socket = directory.path().join("status.sock");
    let options = Options::default().env("TOKEN", TOKEN).args(["-status", &socket.to_string_lossy()]);
    let server = Server::start_with(&good, options);
    for (failed, lines) in (1..).zip(LINES) {
        server.write_corefile(&good.replace("whoami", lines));
        server.signal("USR1");
        let log = server.wait_for_lines("Restart failed: ", failed, PATIENCE);
        let (first, at) = (log.last().unwrap(), "Corefile:");
        assert_contains!(first, at);
        assert!(!shows_secret(&server.log_text()), "{lines:?}: {}", server.log_text());
        let page = |path: &str| http_get((ip, 9153).into(), path).unwrap().1;
        let status: Value = serde_json::from_str(&page("/status")).unwrap();
        let error =
            status["reload_failed"]["error"].as_str().unwrap_or_else(|| panic!("{lines:?}: {status}"));
        assert_contains!(error, at);
        let expected = [lines.split_whitespace().next().unwrap(), "TOKEN"];
        assert!(!error.contains(expected[1]) && error.lines().count() == 1, "{lines:?}: {error}");
        for path in ["/status", "/metrics"] {
            assert!(!shows_secret(&page(path)), "{lines:?}: {path}");
        }
        // The status socket gives the full error of the log.
        let printed = super::localdns(&["status", "-status", &socket.to_string_lossy()]);
        let printed = text(&printed.stdout);
        let cause = first.split_once("Restart failed: ").unwrap().1;
        assert_contains!(printed, format!("the previous configuration is in use: {cause}"));
        assert!(!shows_secret(&printed), "{lines:?}: {printed}");
    }
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn errors_show_variables_unexpanded() {
    let directory = tempdir();
    let file = directory.path().join("Corefile");
    for lines in LINES {
        fs::write(&file, format!(".:5399 {{\n{lines}\n}}\n")).unwrap();
        let printed = check(&file);
        assert!(!shows_secret(&printed), "{lines:?}: {printed}");
        assert_contains!(printed, "TOKEN");
    }
    for (lines, shown) in [
        (
            "whoami {$TOKEN}",
            "Corefile:2:8: plugin/whoami: unexpected argument; expected is no argument; the Corefile has \"{$TOKEN}\" here, and values of variables are not shown\n  2 | whoami {$TOKEN}\n    |        ^\n",
        ),
        (
            "{$TOKEN}",
            "Corefile:2:1: unknown directive; `localdns -plugins` lists those that are served; the Corefile has \"{$TOKEN}\" here, and values of variables are not shown\n  2 | {$TOKEN}\n    | ^\n",
        ),
        // The default in the Corefile itself is no secret.
        ("whoami {$UNSET:abc}", "Corefile:2:8: plugin/whoami: unexpected argument \"abc\"; "),
        ("cache {\nsuccess {$UNSET:abc}\n}", "Corefile:3:9: plugin/cache: \"abc\" is not "),
    ] {
        fs::write(&file, format!(".:5399 {{\n{lines}\n}}\n")).unwrap();
        assert_contains!(check(&file), shown);
    }
}

/// Wherever the import is, and wherever the file is.
#[test]
fn non_corefile_is_not_shown() {
    let (directory, outside) = (tempdir(), tempdir());
    let corefile = directory.path().join("Corefile");
    let texts = [
        "root:$6$s3cr3t$hunter2:19000:0:99999:7:::\n",
        "s3cr3t hunter2\nhunter2 s3cr3t\n",
        "s3cr3t=hunter2\n",
        "-----BEGIN s3cr3t hunter2-----\ns3cr3t\n",
        "{\"s3cr3t\": \"hunter2\"}\n",
        "log\nhunter2 s3cr3t\n",
        "cache 30 hunter2 {\ns3cr3t\n",
        "192.0.2.1 host.example\ns3cr3t hunter2\n",
        "\"s3cr3t\nhunter2\n",
        "(hunter2) s3cr3t\n",
        "https://hunter2:s3cr3t {\n",
        "hunter2 s3cr3t }\n",
    ];
    for place in [&directory, &outside] {
        let file = place.path().join("file");
        let name = file.display();
        for content in texts {
            fs::write(&file, content).unwrap();
            for (form, around) in [
                ("a block", format!(".:5399 {{\nimport {name}\n}}\n")),
                ("hosts", format!(".:5399 {{\nhosts {{\nimport {name}\n}}\n}}\n")),
                ("the file", format!("import {name}\n")),
                ("the end", format!(".:5399 {{\nwhoami\n}}\nimport {name}\n")),
                ("a pattern", format!(".:5399 {{\nimport {}/f*\n}}\n", place.path().display())),
            ] {
                fs::write(&corefile, around).unwrap();
                let printed = check(&corefile);
                assert!(!shows_secret(&printed), "{content:?} in {form}: {printed}");
            }
        }
    }
    // The error gives its place and kind.
    let file = outside.path().join("file");
    fs::write(&file, "log\n  forwrad . 192.0.2.1\n").unwrap();
    fs::write(&corefile, format!(".:5399 {{\nimport {}\n}}\n", file.display())).unwrap();
    let expected = format!("localdns: {}:2:3: unknown directive; did you mean `forward`?\n", file.display());
    assert_eq!(check(&corefile), expected);
}

/// A valid part of a Corefile may be imported from any directory, by an absolute path, a path with
/// `..`, or a link; anything but a regular file is an error at once.
#[test]
fn imports_from_outside_the_directory() {
    let home = tempdir();
    let (inside, outside) = (home.path().join("inside"), home.path().join("outside"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("part"), "import more\n").unwrap();
    // Relative to the importing file.
    fs::write(outside.join("more"), "whoami\n").unwrap();
    fs::write(outside.join("circle"), "import ../inside/link\n").unwrap();
    std::os::unix::fs::symlink(outside.join("circle"), inside.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.join("part"), inside.join("good")).unwrap();
    run("mkfifo", &[&outside.join("pipe").to_string_lossy()]);
    let corefile = inside.join("Corefile");
    let absolute = outside.join("part").display().to_string();
    for (target, expected) in [
        (absolute.as_str(), None),
        ("../outside/part", None),
        ("../outside/p*t", None),
        ("../outside/../outside/more", None),
        ("../outside/pipe", Some("expected a file, found a pipe")),
        ("../outside", Some("expected a file, found a directory")),
        ("/dev/zero", Some("expected a file, found ")),
        ("/proc/self/environ", Some("/proc/self/environ:")),
        ("../outside/absent", Some("found no snippet above and no file for this import")),
        ("link", Some("imports itself")),
    ] {
        fs::write(&corefile, format!(".:5399 {{\nimport {target}\n}}\n")).unwrap();
        let printed = check(&corefile);
        match expected {
            None => assert_contains!(printed, "the Corefile can be served"),
            Some(error) => assert_contains!(printed, error),
        }
        assert!(!shows_secret(&printed), "{target}: {printed}");
    }
    // A link in the directory is followed; imports in its target are relative to the link.
    fs::write(&corefile, ".:5399 {\nimport good\n}\n").unwrap();
    assert_contains!(check(&corefile), "good:1:8: found no snippet above and no file for this import");
}

/// The output of `check`, with the secret in its environment.
fn check(corefile: &Path) -> String {
    let mut command = Command::new(binary());
    command.args(["check", "-conf"]).arg(corefile).env("TOKEN", TOKEN);
    let printed = output(command, PATIENCE);
    text(&printed.stderr) + &text(&printed.stdout)
}

/// The socket exists by default, and `status` tries it before the HTTP pages.
#[test]
fn status_asks_the_socket_first() {
    isolated(|| {
        let corefile = ".:53 {\nbind 127.0.0.1\nprometheus 127.0.0.1:9153\nwhoami\n}\n";
        run("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        let server = Server::start_with(corefile, Options::default().env("TOKEN", TOKEN));
        let socket = Path::new("/run/localdns.sock");
        assert_eq!(fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
        let conf = server.path("Corefile").display().to_string();
        let elsewhere = tempdir();
        let other = elsewhere.path().join("Corefile");
        fs::write(&other, corefile).unwrap();
        server.write_corefile(".:53 {\nforwrad . 192.0.2.1\n}\n");
        server.signal("USR1");
        server.wait_for_log("Restart failed: ", PATIENCE);
        let full = "unknown directive \"forwrad\"";
        for (args, error) in [
            (&["status"][..], full),
            (&["status", "-conf", &conf], full),
            (&["status", "-status", "/run/localdns.sock"], full),
            // The server at the socket has another Corefile.
            (&["status", "-conf", &other.display().to_string()], "unknown directive; did you mean"),
            (&["status", "-status", "127.0.0.1:9153"], "unknown directive; did you mean"),
        ] {
            let printed = super::localdns(args);
            assert_contains!(text(&printed.stdout) + &text(&printed.stderr), error);
        }
        drop(server);
        // A new server replaces a killed server's socket.
        let _server = Server::start(corefile);
        assert_contains!(text(&super::localdns(&["status"]).stdout), "no names are refreshed");
    });
}
