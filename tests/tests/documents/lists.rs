//! Links, and the list of long tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tests::assert_contains;

use super::{documents, localdns, read, root};

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

/// README.md can be read in five minutes, and the other first documents before a change.
#[test]
fn first_documents_are_short() {
    for (document, most) in [("README.md", 150), ("ARCHITECTURE.md", 150), ("CONTRIBUTING.md", 100)] {
        let lines = read(document).lines().count();
        assert!(lines <= most, "{document} has {lines} lines");
    }
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1_000, "README.md has {words} words");
}

/// ARCHITECTURE.md and docs/walk.md name functions and files that exist.
#[test]
fn documented_code_names_exist() {
    let crates = ["", "crates", "kubernetes", "node", "plugins", "tests", "benches"]
        .iter()
        .flat_map(|folder| fs::read_dir(root().join(folder)).expect("a folder of the workspace"))
        .map(|entry| entry.expect("can be read").path());
    let folders = crates.map(|path| path.join("src")).filter(|path| path.exists());
    let (paths, texts): (Vec<_>, Vec<_>) = folders
        .flat_map(|folder| {
            sources(&folder.to_string_lossy()).into_iter().map(move |(path, text)| (folder.join(path), text))
        })
        .unzip();
    let sources: String = texts.concat();
    let mut count = 0;
    for document in ["ARCHITECTURE.md", "docs/walk.md"] {
        let text = read(document);
        for name in text.split('`').skip(1).step_by(2).filter(|name| name.contains("::")) {
            // A method is defined without the name of its type.
            let function = name.rsplit("::").next().map(|last| format!("fn {last}")).unwrap_or_default();
            let is_there = sources.contains(name) || sources.contains(&function);
            assert!(is_there, "{document}: {name} is nowhere in the code");
            count += 1;
        }
        let files =
            text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs") && name.contains('/'));
        for file in files {
            assert!(paths.iter().any(|path| path.ends_with(file)), "{document}: {file}");
            count += 1;
        }
        // The first cell of a row names files and functions.
        let rows = text.lines().filter(|_| document == "docs/walk.md");
        let cells = rows.filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        for name in cells.flat_map(|cell| cell.split('`').step_by(2)) {
            if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                assert!(
                    sources.contains(&format!("fn {name}(")) || sources.contains(&format!("fn {name}<")),
                    "{document}: {name}"
                );
                count += 1;
            }
        }
    }
    assert!(count > 20, "{count}");
}

/// Each flag of `node run` is listed with its default value and its environment variable.
#[test]
fn node_run_flags_are_listed() {
    let output = localdns(&["node", "run", "-h"]).output().expect("it runs");
    let help = String::from_utf8(output.stdout).expect("text");
    let (node, server) = (read("docs/node.md"), read("docs/command-line.md"));
    // A later section has node-cache's flags.
    let node =
        node.split("\n## ").find(|section| section.starts_with("Commands")).expect("a section").to_owned();
    let mut count = 0;
    for line in help.lines().filter(|line| line.trim_start().starts_with("--")) {
        let name =
            line.trim_start().trim_start_matches('-').split([' ', '[', '=']).next().unwrap_or_default();
        let row =
            |text: &str| text.lines().find(|row| row.starts_with(&format!("| `-{name}"))).map(str::to_owned);
        let of_node = row(&node);
        let found = of_node.clone().or_else(|| row(&server));
        assert!(found.is_some(), "-{name} has no row in docs/node.md, nor in docs/command-line.md");
        let default = line.split("[default: ").nth(1).and_then(|rest| rest.split(']').next());
        if let (Some(row), Some(default)) = (&of_node, default) {
            assert!(
                row.replace('`', "").contains(&format!("| {default} |")),
                "-{name} is {default} unless said: {row}"
            );
        }
        if let Some(variable) = line.split("[env: ").nth(1).and_then(|rest| rest.split(']').next()) {
            assert_contains!(node, format!("| `{variable}` | `-{name}`"));
        }
        count += 1;
    }
    assert!(count > 15, "{help}");
}

/// Only the current results of benchmarks, and those that the changelog cites, are kept. A run is
/// named by its day, and by its kind unless it is the comparison.
#[test]
fn benchmark_runs_are_current() {
    let runs = fs::read_dir(root().join("benches/runs")).expect("there are runs");
    let paths = runs.map(|run| run.expect("a folder can be read").path());
    let names: BTreeSet<_> =
        paths.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    let kind = |name: &str| name.get(DAY.len()..).map(str::to_owned);
    let newest: BTreeMap<_, _> = names.iter().map(|name| (kind(name), name)).collect();
    assert!(newest.contains_key(&Some(String::new())), "no comparison is kept");
    for name in names.iter().filter(|name| newest[&kind(name)] != *name) {
        assert_contains!(read("CHANGELOG.md"), format!("benches/runs/{name}.md"));
    }
}

/// Stands for any day: all have this length.
const DAY: &str = "2026-11-25";

#[test]
fn long_tests_are_listed() {
    let text = read("tests/README.md");
    let ignored = ignored_tests();
    for (target, name) in &ignored {
        let command =
            format!("`cargo test --release -p tests --test {target} {name} -- --ignored --nocapture`");
        assert_contains!(text, command);
    }
    assert_eq!(text.matches(" -- --ignored").count(), ignored.len());
}

/// Each tool that a test names is required in CI, where no test may be skipped.
#[test]
fn ci_requires_the_tests_tools() {
    let script = read(".ci/run");
    let lists = script.lines().filter_map(|line| line.trim_start_matches("export ").split_once('='));
    let lists = lists.filter(|(name, _)| name.trim_end_matches('+') == "LOCALDNS_TESTS_REQUIRE");
    let required: BTreeSet<&str> = lists.flat_map(|(_, list)| list.split(',')).collect();
    let mut named = BTreeSet::new();
    for text in sources("tests/tests").into_iter().chain(sources("tests/src")).map(|(_, text)| text) {
        for call in ["tool(", "lacking("].iter().flat_map(|word| text.split(*word).skip(1)) {
            // The second argument, behind the test's name.
            let word = call.split([')', ';']).next().and_then(|call| call.split(", ").nth(1));
            let word = word.and_then(|word| word.strip_prefix('"')?.strip_suffix('"'));
            named.extend(word.map(str::to_owned));
        }
    }
    assert!(named.contains("kdig") && named.contains("kube-apiserver"), "{named:?}");
    let missing: Vec<_> = named.iter().filter(|tool| !required.contains(tool.as_str())).collect();
    assert!(missing.is_empty(), "LOCALDNS_TESTS_REQUIRE of .ci/run lacks {missing:?}");
}

/// The target and the name of each ignored test.
fn ignored_tests() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, text) in sources("tests/tests") {
        let target = path.iter().next().map(Path::new).and_then(Path::file_stem).unwrap_or_default();
        for after in text.split("\n#[ignore").skip(1) {
            let name = after.split_once("\nfn ").and_then(|(_, name)| name.split_once('('));
            let (name, _) = name.expect("a test follows its attributes");
            found.push((target.to_string_lossy().into_owned(), name.to_owned()));
        }
    }
    found
}

/// The files in a folder and its subfolders, each by its path there.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let folder = root().join(folder);
    let mut paths = vec![folder.clone()];
    let mut found = Vec::new();
    while let Some(path) = paths.pop() {
        if let Ok(entries) = fs::read_dir(&path) {
            paths.extend(entries.map(|entry| entry.expect("a folder can be read").path()));
            continue;
        }
        let inside = path.strip_prefix(&folder).expect("it was found there").to_owned();
        found.push((inside, fs::read_to_string(&path).expect("a test can be read")));
    }
    found
}
