//! The pages of plugins: each has all sections, each example serves, and each property is in an
//! example that is valid with and without the others.

use std::fs;

use tempfile::TempDir;
use tests::{Ask, Authority, Options, Server, assert_contains, fresh_ip, output, tempdir};

use super::{PATIENCE, check, localdns, read, root, stderr};

/// Name and page of each plugin with a page in its folder.
fn pages() -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join("plugins/src")).expect("plugins have a folder");
    let mut pages: Vec<(String, String)> = entries
        .map(|entry| entry.expect("a folder can be read").file_name().to_string_lossy().into_owned())
        .map(|name| (format!("plugins/src/{name}/README.md"), name))
        .filter(|(page, _)| root().join(page).exists())
        .map(|(page, name)| (name, read(&page)))
        .collect();
    pages.sort();
    pages
}

/// The directives that the binary serves.
fn served() -> Vec<String> {
    let served = output(localdns(&["-plugins"]), PATIENCE);
    String::from_utf8_lossy(&served.stdout).lines().map(str::to_owned).collect()
}

/// The text between `~~~ corefile` and `~~~`.
fn corefiles(page: &str) -> impl Iterator<Item = &str> {
    page.split("~~~ corefile\n").skip(1).filter_map(|rest| rest.split("~~~").next())
}

/// The complete Corefiles.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    corefiles(page).filter(|text| text.starts_with(".:1053 "))
}

/// A property in an example, its line, and the lines of its directive's other properties.
struct Property<'e> {
    word: &'e str,
    line: usize,
    others: Vec<usize>,
}

/// The properties of the directives with this name.
fn properties<'e>(example: &'e str, name: &str) -> Vec<Property<'e>> {
    let mut found: Vec<Property<'e>> = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    let mut first = 0;
    for (line, text) in example.lines().enumerate() {
        let word = text.split_whitespace().next().unwrap_or_default();
        if word == "}" {
            if open.len() == 2 {
                let lines: Vec<usize> = found[first..].iter().map(|property| property.line).collect();
                for property in &mut found[first..] {
                    property.others = lines.iter().copied().filter(|line| *line != property.line).collect();
                }
            }
            open.pop();
            continue;
        }
        if open.len() == 2 && open[1] == name {
            found.push(Property { word, line, others: Vec::new() });
        }
        if text.ends_with('{') {
            open.push(word);
            first = found.len();
        }
    }
    found
}

/// Whether `property` is refused without `other`.
fn needs(property: &str, other: &str) -> bool {
    let pairs = [
        ("serve_stale_policy", "serve_stale"),
        ("answer", "match"),
        ("answer", "var"),
        // In a rule of `rewrite`.
        ("answer", "name"),
        ("source", "to"),
        // In `auto`.
        ("reload", "directory"),
        ("upstream", "directory"),
        // In `hosts`.
        ("tls", "refresh_via"),
        ("tls_servername", "refresh_via"),
    ];
    pairs.contains(&(property, other))
}

#[test]
fn every_directive_has_a_complete_page() {
    let pages = pages();
    let names: Vec<&String> = pages.iter().map(|(name, _)| name).collect();
    assert_eq!(names, served().iter().collect::<Vec<_>>());
    for (name, page) in &pages {
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {name}");
        let parts = [
            &title[..],
            "## Name",
            "## Description",
            "## Syntax",
            "## Metrics",
            "## Examples",
            "## Differences from CoreDNS",
        ];
        assert_eq!(headings, parts, "{name}");
        assert!(page.contains(&format!("\n`{name}` - ")), "{name}");
    }
}

/// The table of the index is made from the plugins' pages, in the order of plugin_cfg.rs.
#[test]
fn index_is_generated() {
    let index = read(INDEX);
    let (before, rest) = index.split_once(BEGIN).expect("the index has a table");
    let (_, after) = rest.split_once(END).expect("the table ends");
    let generated = format!("{before}{BEGIN}{}{END}{after}", index_table());
    if std::env::var_os("WRITE_INDEX").is_some() {
        fs::write(root().join(INDEX), &generated).expect("the index can be written");
        return;
    }
    let differing: Vec<String> = diff(&index, &generated);
    assert!(
        differing.is_empty(),
        "{INDEX} is not up to date; run `WRITE_INDEX=1 cargo test -p tests --test documents index_is_generated`\n{}",
        differing.join("\n")
    );
}

/// The lines that only one of the texts has.
fn diff(old: &str, new: &str) -> Vec<String> {
    let only = |one: &str, other: &str, sign| {
        let lines = one.lines().filter(|line| !other.lines().any(|same| same == *line));
        lines.map(|line| format!("{sign}{line}")).collect::<Vec<_>>()
    };
    [only(old, new, '-'), only(new, old, '+')].concat()
}

/// The plugins with their purpose and their metrics, from their pages.
fn index_table() -> String {
    let cfg = read("plugins/src/plugin_cfg.rs");
    let place = |name: &str| {
        cfg.find(&format!("(\"{name}\"")).unwrap_or_else(|| panic!("plugin_cfg.rs does not have {name}"))
    };
    let mut pages = pages();
    pages.sort_by_key(|(name, _)| place(name));
    let mut table = "\n| plugin | purpose | metrics |\n|---|---|---|\n".to_owned();
    for (name, page) in pages {
        let purpose =
            page.split_once(&format!("\n`{name}` - ")).expect("a page says what its plugin is for").1;
        let purpose = purpose.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let metrics = page.split_once("\n## Metrics\n").expect("a page has its metrics").1;
        let metrics = metrics.split("\n## ").next().unwrap_or_default();
        let is_family = |word: &&str| ["coredns_", "localdns_"].iter().any(|start| word.starts_with(start));
        let mut families: Vec<String> = Vec::new();
        for family in metrics.split('`').skip(1).step_by(2).filter(is_family) {
            let family = format!("`{}`", family.split('{').next().unwrap_or_default());
            if !families.contains(&family) {
                families.push(family);
            }
        }
        let purpose = purpose.trim_end_matches('.');
        table += &format!(
            "| [{name}](../../plugins/src/{name}/README.md) | {purpose} | {} |\n",
            families.join(", ")
        );
    }
    table
}

/// The index of plugins, and the markers around its table.
const INDEX: &str = "docs/plugins/README.md";
const BEGIN: &str = "<!-- generated from the pages of the plugins -->\n";
const END: &str = "<!-- end of what is generated -->\n";

#[test]
fn the_changelog_names_every_plugin() {
    let changelog = read("CHANGELOG.md");
    let list = changelog.split("\n- ").find(|entry| entry.starts_with("Serves ")).expect("it has a list");
    for name in served() {
        assert_contains!(list, format!("`{name}`"));
    }
}

#[test]
fn every_example_starts_and_answers() {
    for (name, page) in pages() {
        let mut started = 0;
        for example in examples(&page) {
            let shown = |line: &str| line.split_whitespace().next() == Some(&name);
            assert!(example.lines().any(shown), "{name}: {example}");
            let directory = certified();
            let (ip, silent) = (fresh_ip(), fresh_ip());
            let whoami = if name == "whoami" { "" } else { "    whoami\n" };
            let corefile = example
                .replacen("{\n", &format!("{{\n    bind {ip}\n{whoami}"), 1)
                .replace(" . 192.0.2.53", " upstream.example 192.0.2.53")
                // No external server is queried, and no file of the machine is written.
                .replace("192.0.2.53", &silent.to_string())
                .replace("192.0.2.54", &fresh_ip().to_string())
                .replace("169.254.10.10", &ip.to_string())
                .replace("/etc/localdns", &directory.path().to_string_lossy());
            let server = Server::start_with(&corefile, Options::default().args(["-status", ""]));
            let reply = Ask::new("www.example.org", "A").of((ip, 1053).into());
            let status = reply.status();
            assert!(["NOERROR", "REFUSED"].contains(&status), "{name}: {example}\n{}", server.log_text());
            started += 1;
        }
        assert!(started > 0, "{name} has no example");
    }
}

/// Each property of an example is read without the other properties.
#[test]
fn properties_of_examples_stand_alone() {
    let directory = certified();
    let here = directory.path().to_string_lossy();
    let mut count = 0;
    for (name, page) in pages() {
        for example in examples(&page) {
            let example = if ["autopath", "https", "quic", "tls"].contains(&name.as_str()) {
                example.replace("/etc/localdns", &here)
            } else {
                example.to_owned()
            };
            let lines: Vec<&str> = example.lines().collect();
            for property in properties(&example, &name) {
                let mut alone = lines.clone();
                for other in &property.others {
                    let word = lines[*other].split_whitespace().next().unwrap_or_default();
                    if !needs(property.word, word) {
                        alone[*other] = "";
                    }
                }
                let checked = check(&alone.join("\n"));
                assert!(checked.status.success(), "{name}: {}: {}", property.word, stderr(&checked));
                // The property is parsed, not skipped: a misspelt one is refused on its line.
                let broken = format!("zz{}", alone[property.line].trim_start());
                alone[property.line] = &broken;
                assert_contains!(stderr(&check(&alone.join("\n"))), format!(":{}:1: ", property.line + 1));
                count += 1;
            }
        }
    }
    assert!(count > 60, "{count} properties in the examples");
}

#[test]
fn every_property_stands_in_an_example() {
    let mut count = 0;
    for (name, page) in pages() {
        let shown: Vec<&str> = examples(&page)
            .flat_map(|example| properties(example, &name))
            .map(|property| property.word)
            .collect();
        for word in known(&name, &page) {
            // The complete word, not the beginning of another one.
            let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let is_described = ["`", "|"].iter().any(|before| {
                page.match_indices(&format!("{before}{word}"))
                    .any(|(at, found)| ends(&page[at + found.len()..]))
            });
            assert!(is_described, "the page of {name} does not say what {word} is");
            let is_built = !NOT_BUILT.contains(&(&*name, &*word));
            assert!(!is_built || shown.contains(&&*word), "no example of {name} has {word}");
            count += 1;
        }
    }
    assert!(count > 80, "{count} properties are known");
}

/// `rewrite` has rules instead of properties.
#[test]
fn every_rewrite_rule_has_an_example() {
    let page = read("plugins/src/rewrite/README.md");
    let shown: Vec<String> = examples(&page).flat_map(rules).collect();
    for rule in RULES {
        let words = format!(" {rule} ");
        assert!(shown.iter().any(|shown| shown.contains(&words)), "no example of rewrite has {rule:?}");
    }
    let in_braces =
        |example: &str| example.contains("rewrite continue {") || example.contains("rewrite stop {");
    assert!(examples(&page).any(in_braces), "no example has a rule in braces");
    // The program knows no other rules, by the list in its error.
    for (of, asked) in
        [("", "zzzzzz a b"), ("edns0 ", "edns0 zzzzzz set b"), ("edns0 local ", "edns0 local zzzzzz a b")]
    {
        let message = stderr(&check(&format!(". {{\nrewrite {asked}\nwhoami\n}}\n")));
        let expected =
            message.split_once(" is not ").map(|(_, words)| words.lines().next().unwrap_or_default());
        let expected =
            expected.unwrap_or_else(|| panic!("{asked}: {message}")).trim_start_matches("a rule: ");
        for word in expected.replace(" or ", ", ").split(", ") {
            let rule = format!("{of}{word}");
            assert!(RULES.iter().any(|known| known.starts_with(&rule)), "{rule:?} is in no row of the test");
        }
    }
}

/// The words of each `rewrite`, between spaces.
fn rules(example: &str) -> Vec<String> {
    let mut rules: Vec<String> = Vec::new();
    let mut open = false;
    for line in example.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.first() {
            Some(&"rewrite") => {
                open = line.ends_with('{');
                rules.push(format!(" {} ", words[1..].join(" ").trim_end_matches(" {")));
            }
            Some(&"}") => open = false,
            Some(_) if open => {
                let rule = rules.last_mut().expect("a rule is open");
                rule.push_str(&format!("{} ", words.join(" ")));
            }
            _ => {}
        }
    }
    rules
}

/// Beginnings and parts of rules.
const RULES: &[&str] = &[
    "continue",
    "stop",
    "name exact",
    "name prefix",
    "name suffix",
    "name substring",
    "name regex",
    "metadata",
    "answer auto",
    "answer name",
    "answer value",
    "type",
    "class",
    "ttl",
    "rcode",
    "cname",
    "edns0 local set",
    "edns0 local append",
    "edns0 local replace",
    "edns0 local unset",
    "edns0 nsid set",
    "edns0 nsid append",
    "edns0 nsid replace",
    "edns0 nsid unset",
    "edns0 subnet set",
    "edns0 subnet append",
    "edns0 subnet replace",
    "edns0 subnet unset",
    "revert",
];

/// The properties in the program's error for an unknown property.
fn known(name: &str, page: &str) -> Vec<String> {
    let mut known = Vec::new();
    for example in examples(page) {
        let directive =
            |line: &&str| line.starts_with("    ") && line.split_whitespace().next() == Some(name);
        for line in example.lines().filter(directive) {
            let open = line.trim_end_matches(" {");
            let closed = if open == line { "\n    }" } else { "" };
            let output = check(&example.replacen(line, &format!("{open} {{\n        zzzzzz{closed}"), 1));
            // A line in braces after `rewrite` is a rule.
            assert!(!output.status.success() || name == "rewrite", "{name} has zzzzzz");
            let message = stderr(&output);
            let Some((_, words)) = message.split_once("unknown property \"zzzzzz\"; expected ") else {
                continue;
            };
            let words = words.lines().next().unwrap_or_default().split(", ").map(str::to_owned);
            known.extend(words);
        }
    }
    known
}

/// Every fragment of a page without placeholders is accepted.
#[test]
fn every_fragment_is_accepted() {
    for (name, page) in pages() {
        for fragment in corefiles(&page).filter(|text| !text.starts_with(".:")) {
            if fragment.contains(|c: char| c.is_ascii_uppercase()) {
                continue;
            }
            let whoami = if name == "whoami" { "" } else { "whoami" };
            let output = check(&format!(". {{\n{fragment}\n{whoami}\n}}\n"));
            assert!(output.status.success(), "{name}: {fragment}: {}", stderr(&output));
        }
    }
}

/// A directory with a certificate, its key and its authority, and a search list.
fn certified() -> TempDir {
    let (directory, authority) = (tempdir(), Authority::new());
    authority.certify(directory.path(), "dns.example");
    authority.write(directory.path());
    fs::write(directory.path().join("search.conf"), "search example.net\n").expect("it is the test's own");
    directory
}

/// Known properties that are refused.
const NOT_BUILT: &[(&str, &str)] =
    &[("forward", "doh_method"), ("prometheus", "tls"), ("proxyproto", "tlv_metadata")];
