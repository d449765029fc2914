//! Imports: snippets, files, patterns, and their bounds.

use std::fs;
use std::path::Path;

use crate::common::{env, shape};
use corefile::{Corefile, Located, SyntaxError};
use tempfile::TempDir;

/// Creates a directory that holds the files.
fn dir_with(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a writable directory");
        fs::write(path, text).expect("a writable file");
    }
    dir
}

/// Reads `Corefile` in a directory that holds the files.
fn read(files: &[(&str, &str)]) -> Result<Corefile, Located<SyntaxError>> {
    let dir = dir_with(files);
    corefile::read_file(&dir.path().join("Corefile"), &env)
}

/// Returns the first line of the error of [`read`], with paths relative to the directory.
fn error(files: &[(&str, &str)]) -> String {
    let dir = dir_with(files);
    let error = corefile::read_file(&dir.path().join("Corefile"), &env).expect_err("a bad configuration");
    let prefix = format!("{}/", dir.path().display());
    format!("{error:#}").replace(&prefix, "")
}

#[test]
fn imports() {
    let rows: &[(&[(&str, &str)], &str)] = &[
        (&[("Corefile", "(s) {\nlog\nerrors\n}\n. {\nimport s\ncache\n}")], ". { log; errors; cache; }"),
        (&[("Corefile", "(s) { log\n}\n.\nimport s\nimport s")], ". { log; log; }"),
        (
            &[("Corefile", "(s) {\nb c\n}\n. {\na x {\nd e\nimport s\nf g\n}\n}")],
            ". { a x { d e; b c; f g; } }",
        ),
        (&[("Corefile", "(a) {\nlog\n}\n(b) {\nimport a\n}\n. {\nimport b\n}")], ". { log; }"),
        (&[("Corefile", "(s) {\n}\n. {\nimport s\nlog\n}")], ". { log; }"),
        (&[("Corefile", "(s) {\na {\nb\n}\n}\n. {\nimport \"s\"\n}")], ". { a { b; } }"),
        (&[("Corefile", "import x"), ("x", "a.b {\nlog\n}")], "a.b { log; }"),
        (&[("Corefile", ". {\nimport x\n}"), ("x", "log")], ". { log; }"),
        (&[("Corefile", ". {\nimport {$UNSET:x}\n}"), ("x", "log")], ". { log; }"),
        (&[("Corefile", "import keys\n{\nlog\n}"), ("keys", "a.b c.d")], "a.b c.d { log; }"),
        (&[("Corefile", "x,\nimport keys\n{\n}"), ("keys", "a.b")], "x a.b { }"),
        (&[("Corefile", "import s\n. {\nimport t\n}"), ("s", "(t) {\nlog\n}")], ". { log; }"),
        (
            &[("Corefile", ". {\nimport d/x\n}"), ("d/x", "log\nimport y"), ("d/y", "errors")],
            ". { log; errors; }",
        ),
        (
            &[("Corefile", "import d/s\n. {\nimport t\n}"), ("d/s", "(t) {\nimport y\n}"), ("d/y", "errors")],
            ". { errors; }",
        ),
        (
            &[
                ("Corefile", "import d/*.server\n"),
                ("d/b.server", "b {\n}"),
                ("d/a.server", "a {\n}"),
                ("d/c.x", "}"),
            ],
            "a { } b { }",
        ),
        (&[("Corefile", "import */x"), ("b/x", "b {\n}"), ("a/x", "a {\n}"), ("c/y", "}")], "a { } b { }"),
        (&[("Corefile", ". {\nimport none/*.x\nlog\n}")], ". { log; }"),
        (&[("Corefile", "import none/*.x\n")], ""),
        (&[("Corefile", ". {\nimport x\nimport x\n}"), ("x", "log")], ". { log; log; }"),
        (
            &[("Corefile", ". {\nimport *.x\n}"), ("a.x", "log\nimport b.x"), ("b.x", "errors")],
            ". { log; errors; errors; }",
        ),
        (&[("Corefile", ". {\nimport /dev/null\nlog\n}")], ". { log; }"),
    ];
    for (files, expected) in rows {
        let corefile = read(files).unwrap_or_else(|error| panic!("{files:?}: {error}"));
        assert_eq!(shape(&corefile), *expected, "{files:?}");
    }
}

#[test]
fn bad_imports() {
    let rows: &[(&[(&str, &str)], &str)] = &[
        (
            &[("Corefile", ".\nimport nowhere")],
            "Corefile:2:8: found no snippet above and no file for this import: nowhere; define it above, or put the file there",
        ),
        (
            &[("Corefile", ".\nimport s\n(s) {\n}")],
            "Corefile:2:8: found no snippet above and no file for this import: s; define it above, or put the file there",
        ),
        (
            &[("Corefile", ".\nimport d"), ("d/x", "")],
            "Corefile:2:8: cannot read d: expected a file, found a directory; name the file in it",
        ),
        (
            &[("Corefile", ".\nimport *"), ("d/x", "")],
            // `*` matches the Corefile, too, which precedes the directory.
            "Corefile:2:8: `Corefile` imports itself",
        ),
        (
            &[("Corefile", ".\nimport d/*"), ("d/..data/x", "")],
            "Corefile:2:8: cannot read d/..data: expected a file, found a directory; name the file in it",
        ),
        (
            &[("Corefile", ".\nimport")],
            "Corefile:2:1: expected a snippet, a file or a pattern after `import`",
        ),
        (
            &[("Corefile", ".\nimport {$UNSET}")],
            "Corefile:2:8: expected a snippet, a file or a pattern after `import`; the environment variable UNSET is not set here: set it, or give it a value by {$UNSET:VALUE}",
        ),
        (
            &[("Corefile", ".\nimport a b")],
            "Corefile:2:10: found `b`, expected one snippet, file or pattern after `import`",
        ),
        (
            &[("Corefile", ".\nimport */*")],
            "Corefile:2:8: bad pattern `*/*`, expected at most one `*` and one `?`, and no `[`",
        ),
        (
            &[("Corefile", ".\nimport [a-z]")],
            "Corefile:2:8: bad pattern `[a-z]`, expected at most one `*` and one `?`, and no `[`",
        ),
        (&[("Corefile", ".\nimport x"), ("x", "import Corefile")], "x:1:8: what is imported imports itself"),
        (&[("Corefile", ".\nimport x"), ("x", "log\nimport x")], "x:2:8: what is imported imports itself"),
        (
            &[("Corefile", ".\nimport x"), ("x", "import d/../x"), ("d/y", "")],
            "x:1:8: what is imported imports itself",
        ),
        (&[("Corefile", "(s) {\nimport s\n}\n. {\nimport s\n}")], "Corefile:2:8: `s` imports itself"),
        (
            &[("Corefile", ".\nimport x"), ("x", "log {")],
            "x:1:5: this `{` is never closed, expected `}` before the end of the file",
        ),
        (&[("Corefile", ".\nimport x"), ("x", "log \"")], "x:1:5: this `\"` is never closed"),
        (&[("other", "")], "cannot read Corefile: there is no such file; put it there, or name another one"),
        (
            &[("Corefile/x", "")],
            "cannot read Corefile: expected a file, found a directory; name the file in it",
        ),
    ];
    for (files, expected) in rows {
        assert_eq!(error(files), *expected, "{files:?}");
    }
}

/// An imported file may be any file that the process can read, such as one with passwords.
#[test]
fn imported_errors_show_no_text() {
    let inside = ". {\nimport x\n}";
    for (corefile, text, expected) in [
        (
            inside,
            "root:hunter2:19:0:",
            "x:1:1: found a key, expected a directive or `}`: the block begun at Corefile:1:3 is not closed",
        ),
        (inside, "log hunter2 }", "x:1:13: found `}` after a word, expected it on a line of its own"),
        (inside, "log {\n} hunter2", "x:2:3: found a word after `}`, expected the end of the line"),
        (
            inside,
            "import hunter2",
            "x:1:8: found no snippet above and no file for this import; define it above, or put the file there",
        ),
        (inside, "import hunter2[", "x:1:8: bad pattern, expected at most one `*` and one `?`, and no `[`"),
        (inside, "import a hunter2", "x:1:10: expected one snippet, file or pattern after `import`"),
        (inside, "log hunter2{", "x:1:5: expected the brace as a word of its own"),
        ("import x", "root:hunter2:19:0:", "x:1:1: bad port, expected a number from 0 to 65535"),
        ("import x", "hunter2://a", "x:1:1: unknown scheme, expected dns, tls, grpc, https, https3 or quic"),
        ("import x", "a..hunter2", "x:1:1: the zone has an empty label"),
        ("import x", "10.0.0.0/hunter2", "x:1:1: bad network mask, expected a number from 0 to 32"),
        (
            "import x",
            "hunter2\\",
            "x:1:1: the zone has a bad escape, expected `\\` and a character or three digits up to 255",
        ),
        ("import x", "(hunter2)", "x:1:1: expected `{` after the snippet"),
    ] {
        let dir = dir_with(&[("Corefile", corefile), ("x", text)]);
        let error = corefile::read_file(&dir.path().join("Corefile"), &env).unwrap_err();
        let prefix = format!("{}/", dir.path().display());
        assert_eq!(error.to_string().replace(&prefix, ""), expected, "{text:?}");
    }
}

#[test]
fn unmatched_pattern_warns() {
    let corefile = read(&[("Corefile", ". {\nimport none/*.x\n}")]).unwrap();
    let warning = format!("{:#}", corefile.warnings[0]);
    assert!(warning.ends_with("Corefile:2:8: no file matches the pattern `none/*.x`"), "{warning}");
    assert_eq!(corefile.warnings.len(), 1);
}

#[test]
fn files_are_listed_once() {
    let dir = dir_with(&[
        ("Corefile", ". {\nimport x\nimport x\nimport d/*\n}"),
        ("x", "log"),
        ("d/a", "errors"),
        ("d/b", ""),
        ("e", ""),
    ]);
    let corefile = corefile::read_file(&dir.path().join("Corefile"), &env).unwrap();
    let expected = ["Corefile", "d/a", "d/b", "x"].map(|name| dir.path().join(name));
    assert_eq!(corefile.files, expected);
}

#[test]
fn imports_of_text_from_memory() {
    let dir = dir_with(&[("x", "log")]);
    let corefile = corefile::read_text("stdin", b".\nimport x", dir.path(), &env).unwrap();
    assert_eq!(shape(&corefile), ". { log; }");
    assert_eq!(corefile.files, [dir.path().join("x")]);
    assert_eq!(corefile.blocks[0].at.to_string(), "stdin:1:1");
}

#[test]
fn pipe_is_refused() {
    let dir = dir_with(&[("Corefile", ".\nimport pipe")]);
    let status = std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status();
    assert!(status.expect("mkfifo runs").success());
    let error = corefile::read_file(&dir.path().join("Corefile"), &env).unwrap_err();
    assert!(matches!(error.error, SyntaxError::NotAFile { found: "a pipe", .. }), "{error}");
}

#[test]
fn endless_device_is_refused() {
    let error = corefile::read_text("Corefile", b".\nimport /dev/zero", Path::new(""), &env).unwrap_err();
    assert!(matches!(error.error, SyntaxError::NotAFile { found: "a device", .. }), "{error}");
}

#[test]
fn text_beyond_16_mib_is_too_large() {
    let mut text = vec![b' '; 16 << 20];
    assert!(crate::common::read(&text).is_ok());
    text.push(b' ');
    let error = crate::common::read(&text).unwrap_err();
    assert!(matches!(error.error, SyntaxError::FileTooLarge { .. }), "{error}");
}

#[test]
fn expansions_end_at_their_bounds() {
    /// Returns snippets that double the number of words at each level.
    fn doubling(body: &str) -> String {
        let mut text = format!("(s0) {{\n{body}\n}}\n");
        for level in 1..30 {
            let below = level - 1;
            text += &format!("(s{level}) {{\nimport s{below}\nimport s{below}\n}}\n");
        }
        text + ".\nimport s29\n"
    }
    let long_value = |_: &str| Some("x".repeat(1 << 20));
    let rows = [
        (doubling("log"), SyntaxError::TooManySnippetImports { limit: 10_000 }),
        (doubling(&"log\n".repeat(1000)), SyntaxError::TooManyWords { limit_words: 1_000_000 }),
        (doubling(&"l".repeat(1 << 20)), SyntaxError::TooManyBytes { limit_bytes: 64 << 20 }),
        (". ".repeat(1_000_001), SyntaxError::TooManyWords { limit_words: 1_000_000 }),
        (".\n".to_owned() + &"log {$X}\n".repeat(65), SyntaxError::TooManyBytes { limit_bytes: 64 << 20 }),
        (".\nlog ".to_owned() + &"{$X}".repeat(100_000), SyntaxError::TooManyBytes { limit_bytes: 64 << 20 }),
    ];
    for (text, expected) in rows {
        let got = corefile::read_text("Corefile", text.as_bytes(), Path::new(""), &long_value);
        assert_eq!(got.unwrap_err().error, expected, "{text:.60}");
    }
}
