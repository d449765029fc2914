//! Links, and the list of long tests.

use std::fs;
use std::path::Path;

use tests::assert_contains;

use super::{documents, read, root};

#[test]
fn links_in_documents_lead_somewhere() {
    let slug = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        heading.replace(|c: char| !c.is_alphanumeric() && !"-_".contains(c), "")
    };
    for (document, text) in documents() {
        let folder = root().join(&document).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            assert!(path.is_empty() || folder.join(path).exists(), "{document}: {link}");
            if anchor.is_empty() {
                continue;
            }
            let there = match path {
                "" => text.clone(),
                path => fs::read_to_string(folder.join(path)).unwrap(),
            };
            let found = there.lines().filter(|line| line.starts_with('#')).any(|line| slug(line) == anchor);
            assert!(found, "{document}: {link}");
        }
    }
}

/// A newcomer reads the first in five minutes, and the second before a change.
#[test]
fn what_is_read_first_stays_short() {
    for (document, most) in [("README.md", 250), ("ARCHITECTURE.md", 200)] {
        let lines = read(document).lines().count();
        assert!(lines < most, "{document} has {lines} lines");
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
