//! The crates' imports, as ARCHITECTURE.md draws them, and the one crate that may use unsafe code.

mod vendors;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// The maximum lines of a crate without its tests; the plugins' crate may have more, as none of its
/// folders imports another.
const MOST_LINES: usize = 8_000;
/// The maximum lines of a file, tests included.
const MOST_LINES_OF_A_FILE: usize = 500;
/// Modules of a crate, or of a folder in it, that import each other in a circle: each group is one
/// unit in several files.
const CIRCLES: &[(&str, &[&str])] = &[];
/// Crates that may import all others.
const ABOVE: &[&str] = &["server", "scene", "tests", "benches", "fuzz", "models"];

#[test]
fn crates_import_as_documented() {
    let metadata = metadata();
    let ours: BTreeSet<&str> =
        metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
    let mut drawn = drawn();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if ABOVE.contains(&name) {
            continue;
        }
        let outside_of_tests =
            package.dependencies.iter().filter(|one| one.kind != DependencyKind::Development);
        let imports: BTreeSet<_> =
            outside_of_tests.map(|one| one.name.clone()).filter(|one| ours.contains(one.as_str())).collect();
        assert_eq!(drawn.remove(name), Some(imports), "{name}, as ARCHITECTURE.md draws it, and as it is");
    }
    assert!(drawn.is_empty(), "drawn in ARCHITECTURE.md, and no crate: {drawn:?}");
}

#[test]
fn kubernetes_client_is_in_one_crate() {
    for package in metadata().workspace_packages() {
        let imports =
            package.dependencies.iter().any(|import| import.name == "kube" || import.name == "k8s-openapi");
        assert!(!imports || package.name.as_str() == "kubernetes-api", "{} imports kube", package.name);
    }
}

#[test]
fn unsafe_code_only_in_sockets() {
    let metadata = metadata();
    let root = manifest(metadata.workspace_root.as_std_path());
    assert!(root.contains("unsafe_code = \"forbid\""), "the workspace forbids unsafe code");
    for package in metadata.workspace_packages() {
        let own =
            manifest(package.manifest_path.parent().expect("a manifest lies in a directory").as_std_path());
        let inherits = own.contains("[lints]\nworkspace = true");
        assert!(inherits || package.name.as_str() == "sockets", "{} has lints of its own", package.name);
    }
}

/// Jumps of the clock must have no effect: timeouts, TTLs and ages use the monotonic clock, and the
/// wall clock is for output. It decides only in rustls whether a certificate has expired, and how
/// old an entry is that an earlier process wrote to a file.
#[test]
fn wall_clock_use_is_limited() {
    let readers = [
        // The Date header of the admin pages.
        "crates/admin/src/connection.rs",
        "crates/clock/src/lib.rs",
        "crates/logging/src/json.rs",
        "crates/logging/src/logger.rs",
        "crates/logging/src/query_log.rs",
        // The time of production's exporter.
        "node/run/src/exporter.rs",
        // The times in a hosts file when entries were learned, for the next process.
        "crates/refresh/src/io/mod.rs",
        // The age of the file that it reads.
        "plugins/src/hosts/mod.rs",
        // The time of an endpoint's change is from another machine's clock, and serials are made
        // from the time.
        "plugins/src/kubernetes/cluster.rs",
    ];
    let metadata = metadata();
    let root = metadata.workspace_root.as_std_path();
    let clocks = std::fs::read_to_string(root.join("clippy.toml")).expect("clippy has its rules");
    assert!(clocks.contains("SystemTime::now"), "no code reads it without permission");
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let above = ABOVE.contains(&name) && name != "server";
        if above {
            continue;
        }
        let sources = package.manifest_path.parent().expect("a manifest lies in a directory").join("src");
        for file in sources_in(sources.as_std_path()) {
            let text = std::fs::read_to_string(&file).expect("a source is text");
            let reads = ["SystemTime", "clock::wall", "wall_ms", "CLOCK_REALTIME"]
                .iter()
                .any(|word| text.contains(word));
            let place = file.strip_prefix(root).expect("sources lie in the workspace").to_string_lossy();
            assert!(!reads || place.ends_with("tests.rs") || readers.contains(&&*place), "{place}");
        }
    }
}

/// A plugin is a folder, a row of the table and a `mod` line: no plugin contains code that another
/// plugin uses.
#[test]
fn plugins_are_separate_and_complete() {
    let plugins = repository().join("plugins/src");
    let folders: BTreeSet<String> = std::fs::read_dir(&plugins)
        .expect("plugins have a folder")
        .map(|entry| entry.expect("an entry can be read").path())
        .filter(|path| path.is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    for folder in &folders {
        for file in sources_in(&plugins.join(folder)) {
            let Ok(text) = std::fs::read_to_string(&file) else { continue };
            let others: Vec<_> = imported(&text, FROM_A_FOLDER)
                .into_iter()
                .filter(|name| name != folder && folders.contains(name))
                .collect();
            assert!(others.is_empty(), "{} imports {others:?}", file.display());
        }
    }
    let table = std::fs::read_to_string(plugins.join("plugin_cfg.rs")).expect("the table is text");
    let rows = table.split_once("static PLUGINS").expect("it has rows").1.lines();
    let served: BTreeSet<String> = rows
        .filter(|row| !row.trim_start().starts_with("absent("))
        .filter_map(|row| Some(row.split_once("(\"")?.1.split_once('"')?.0.to_owned()))
        .collect();
    assert_eq!(served, folders, "a folder for each row, and a row for each folder");
    for folder in &folders {
        assert!(plugins.join(folder).join("README.md").exists(), "{folder} has no page");
        let is_tested =
            |file: &PathBuf| std::fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]"));
        assert!(sources_in(&plugins.join(folder)).iter().any(is_tested), "{folder} has no test");
    }
    for (text, names) in [
        ("use crate::hosts::Tables;", vec!["hosts"]),
        (
            "use crate::{admin_address, r#loop::{Watch, hosts}, cache};",
            vec!["admin_address", "loop", "cache"],
        ),
        ("use super::{acl, text::NameText};", vec!["acl", "text"]),
        ("    super::super::cache::CacheSpec", vec!["super", "cache"]),
    ] {
        assert_eq!(imported(text, FROM_A_FOLDER), names, "{text}");
    }
}

/// The paths by which a file in a folder of `plugins` names another folder.
const FROM_A_FOLDER: &[&str] = &["crate::", "super::"];

/// The names directly behind these words, in braces or not.
fn imported(text: &str, words: &[&str]) -> Vec<String> {
    let starts = words.iter().flat_map(|word| text.match_indices(word));
    let mut starts: Vec<&str> = starts.map(|(at, word)| &text[at + word.len()..]).collect();
    starts.sort_by_key(|rest| std::cmp::Reverse(rest.len()));
    names_at(starts)
}

/// The names at the start of these texts, in braces or not.
fn names_at(starts: Vec<&str>) -> Vec<String> {
    let name = |text: &str| {
        let text = text.trim_start().trim_start_matches("r#");
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
    };
    let mut names = Vec::new();
    for rest in starts {
        let Some(group) = rest.strip_prefix('{') else {
            names.push(name(rest));
            continue;
        };
        let (mut depth, mut first) = (0, true);
        for (at, c) in group.char_indices() {
            if depth == 0 && (first || c == ',') {
                names.push(name(&group[at + usize::from(c == ',')..]));
            }
            first = false;
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    names
}

#[test]
fn crates_and_files_stay_small() {
    let metadata = metadata();
    let root = metadata.workspace_root.as_std_path();
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        let folder = package.manifest_path.parent().expect("a manifest lies in a directory");
        let folders = ["src", "tests"].map(|name| folder.join(name).into_std_path_buf());
        let mut lines = 0;
        for file in folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| sources_in(folder)) {
            let place = file.strip_prefix(root).expect("sources lie in the workspace").to_string_lossy();
            if !place.ends_with(".rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("a source is text");
            let length = text.lines().count();
            assert!(length <= MOST_LINES_OF_A_FILE, "{place} has {length} lines");
            if !is_test(&place) {
                lines += without_tests(&text).lines().count();
            }
        }
        let may_grow = name == "plugins";
        assert!(lines <= MOST_LINES || may_grow, "{name} has {lines} lines without tests");
    }
}

#[test]
fn module_cycles_are_listed() {
    let mut circles: BTreeSet<(String, String)> = BTreeSet::new();
    for package in metadata().workspace_packages() {
        let name = package.name.as_str();
        if ABOVE.contains(&name) && name != "server" {
            continue;
        }
        let sources = package.manifest_path.parent().expect("a manifest lies in a directory").join("src");
        let modules = modules(sources.as_std_path());
        let folders: BTreeSet<&[String]> =
            modules.iter().flat_map(|(path, _)| (0..path.len()).map(|deep| &path[..deep])).collect();
        for folder in folders {
            let reach = reach(&modules, folder);
            assert!(
                !folder.is_empty() || reach.len() < 4 || reach.values().any(|imports| !imports.is_empty()),
                "{name}: imports are found"
            );
            let place = [&[name.to_owned()], folder].concat().join("/");
            let own = reach.iter().filter(|(module, imports)| imports.contains(*module));
            circles.extend(own.map(|(module, _)| (place.clone(), module.clone())));
        }
    }
    let listed = CIRCLES
        .iter()
        .flat_map(|(name, modules)| modules.iter().map(|module| ((*name).to_owned(), (*module).to_owned())));
    assert_eq!(circles, listed.collect(), "what imports itself through others, and what is listed");
}

#[test]
fn circles_are_found_at_every_depth() {
    let modules = [
        ("", "pub use below::Word;"),
        ("above", "use crate::below;"),
        ("below", "mod one;\nmod two;\nuse one::{First, Word};"),
        ("below/one", "use super::two;"),
        ("below/two/deep", "use super::super::{Other, First};"),
        ("below/two", "use super::super::one;"),
    ];
    let split = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let modules: Vec<_> = modules.map(|(path, code)| (split(path), code.to_owned())).into();
    let found = |folder: &str| {
        let reach = reach(&modules, &split(folder));
        let lines = reach.into_iter().map(|(module, imports)| {
            format!("{module}: {}", imports.into_iter().collect::<Vec<_>>().join(" "))
        });
        lines.collect::<Vec<_>>()
    };
    assert_eq!(found(""), ["above: below", "below: "]);
    assert_eq!(found("below"), ["one: one two", "two: one two"]);
}

/// The modules of a crate by their paths (empty for the crate itself), with their code without
/// tests.
fn modules(sources: &Path) -> Vec<(Vec<String>, String)> {
    let mut modules = Vec::new();
    for file in sources_in(sources) {
        let place = file.strip_prefix(sources).expect("it lies there").with_extension("");
        let text = file.to_string_lossy();
        if is_test(&text) || !text.ends_with(".rs") {
            continue;
        }
        let mut path: Vec<String> = place.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        path.pop_if(|last| *last == "mod");
        if path == ["lib"] || path == ["main"] {
            path.clear();
        }
        let source = std::fs::read_to_string(&file).expect("a source is text");
        let source = without_tests(&source);
        let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        modules.push((path, lines.collect::<Vec<_>>().join("\n")));
    }
    modules
}

/// Returns the modules directly below `folder` that each of its modules imports, directly or
/// indirectly.
fn reach(modules: &[(Vec<String>, String)], folder: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // A name imported in the parent module is resolved to its module.
    let mut stands: BTreeMap<String, String> = BTreeMap::new();
    let by_name = [&["crate".to_owned()], folder, &[String::new()]].concat().join("::");
    for (path, code) in modules.iter().filter(|(path, _)| path.starts_with(folder)) {
        let Some(module) = path.get(folder.len()) else {
            for import in code.split("use ").skip(1) {
                let import = import.split_once(';').and_then(|(import, _)| import.split_once("::"));
                let Some((from, names)) = import else { continue };
                let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
                stands.extend(names.map(|name| (name.to_owned(), from.to_owned())));
            }
            continue;
        };
        let by_depth = "super::".repeat(path.len() - folder.len());
        let mut starts = behind(code, &by_name);
        starts.extend(behind(code, &by_depth));
        reach.entry(module.clone()).or_default().extend(names_at(starts));
    }
    let known: BTreeSet<String> = reach.keys().cloned().collect();
    for (module, imports) in &mut reach {
        let places = imports
            .iter()
            .map(|name| if known.contains(name) { name } else { stands.get(name).unwrap_or(name) });
        *imports = places.filter(|place| *place != module && known.contains(*place)).cloned().collect();
    }
    // One round for each step of the longest path.
    for _ in 0..known.len() {
        let before = reach.clone();
        for imports in reach.values_mut() {
            let further: Vec<_> = imports.iter().flat_map(|import| before[import].clone()).collect();
            imports.extend(further);
        }
    }
    reach
}

/// The text behind each occurrence of `word` that is a complete path prefix.
fn behind<'t>(text: &'t str, word: &str) -> Vec<&'t str> {
    let whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    let rests =
        text.match_indices(word).filter(|(at, _)| whole(*at)).map(|(at, word)| &text[at + word.len()..]);
    rests.filter(|rest| !rest.starts_with("super::")).collect()
}

/// Whether the file at this path contains only tests.
fn is_test(place: &str) -> bool {
    place.ends_with("tests.rs") || place.contains("/tests/")
}

/// A source without its test module, whether `mod tests;` or inline up to its closing brace.
fn without_tests(text: &str) -> String {
    let mut left = String::new();
    let mut rest = text;
    while let Some((before, tests)) = rest.split_once("#[cfg(test)]\nmod tests") {
        left.push_str(before);
        let end = if tests.starts_with(';') { ";\n" } else { "\n}\n" };
        rest = tests.split_once(end).map_or("", |(_, rest)| rest);
    }
    left + rest
}

#[test]
fn test_module_is_left_out() {
    for (source, left) in [
        ("mod one;\n#[cfg(test)]\nmod tests;\n\nuse one::One;\n", "mod one;\n\nuse one::One;\n"),
        (
            "use one::One;\n#[cfg(test)]\nmod tests {\n    mod one {\n    }\n}\nuse two::Two;\n",
            "use one::One;\nuse two::Two;\n",
        ),
        ("use one::One;\n#[cfg(test)]\nmod tests {\n}\n", "use one::One;\n"),
        ("use one::One;\n", "use one::One;\n"),
    ] {
        assert_eq!(without_tests(source), left, "{source}");
    }
}

fn sources_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a package has sources");
    let paths = entries.map(|entry| entry.expect("an entry can be read").path());
    let (directories, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    files.into_iter().chain(directories.iter().flat_map(|directory| sources_in(directory))).collect()
}

/// Returns the workspace's crates that each crate imports outside of tests, as ARCHITECTURE.md
/// lists them: `crate, crate -> crate, crate; ...`.
fn drawn() -> BTreeMap<String, BTreeSet<String>> {
    let text = std::fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("it is there");
    let block = text.split("\n## Crates\n").nth(1).and_then(|section| section.split("```").nth(1));
    let arrows = block.expect("a drawing").split(['\n', ';']).filter_map(|arrow| arrow.split_once("->"));
    let words = |list: &str| list.split(',').map(|word| word.trim().to_owned()).collect::<BTreeSet<_>>();
    let mut drawn = BTreeMap::new();
    for (from, to) in arrows {
        let imports = if to.trim() == "none of ours" { BTreeSet::new() } else { words(to) };
        for name in words(from) {
            assert!(drawn.insert(name.clone(), imports.clone()).is_none(), "{name} is drawn twice");
        }
    }
    drawn
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo describes the workspace")
}

fn repository() -> PathBuf {
    metadata().workspace_root.into_std_path_buf()
}

fn manifest(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("Cargo.toml")).expect("a package has a manifest")
}
