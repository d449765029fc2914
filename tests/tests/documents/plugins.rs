//! The pages of plugins: every part is there, every example starts and serves, every fragment is taken.

use std::fs;

use tests::{Ask, Options, Server, fresh_ip};

use super::{check, read, root, stderr};

/// Name and page of each plugin that has a folder of its own.
fn pages() -> Vec<(String, String)> {
    let folder = root().join("server/src/plugin");
    let mut pages: Vec<(String, String)> = fs::read_dir(&folder)
        .expect("plugins have a folder")
        .filter_map(|entry| {
            let name = entry.expect("a folder can be read").file_name().to_string_lossy().into_owned();
            let page = format!("server/src/plugin/{name}/README.md");
            root().join(&page).exists().then(|| (name, read(&page)))
        })
        .collect();
    pages.sort();
    pages
}

/// What stands between `~~~ corefile` and `~~~`.
fn corefiles(page: &str) -> impl Iterator<Item = &str> {
    page.split("~~~ corefile\n").skip(1).filter_map(|rest| rest.split("~~~").next())
}

#[test]
fn every_page_has_its_parts_and_is_named_in_the_program() {
    let pages = pages();
    assert!(pages.len() >= 5, "{pages:?}");
    for (name, page) in pages {
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

#[test]
fn every_example_of_a_page_starts_and_answers() {
    for (name, page) in pages() {
        let whole = corefiles(&page).filter(|example| example.starts_with(".:1053 {\n"));
        let mut started = 0;
        for example in whole {
            let ip = fresh_ip();
            let corefile = example.replacen("{\n", &format!("{{\n    bind {ip}\n    whoami\n"), 1);
            let corefile = corefile.replace(" . 192.0.2.53", " upstream.example 192.0.2.53");
            let _server = Server::start_with(&corefile, Options::default());
            let reply = Ask::new("www.example.org", "A").of((ip, 1053).into());
            assert!(["NOERROR", "REFUSED"].contains(&reply.status()), "{name}: {example}");
            started += 1;
        }
        assert!(started > 0, "{name} has no example");
    }
}

#[test]
fn every_fragment_of_a_page_without_placeholders_is_taken() {
    for (name, page) in pages() {
        for fragment in corefiles(&page).filter(|text| !text.starts_with(".:")) {
            if fragment.contains(|c: char| c.is_ascii_uppercase()) {
                continue;
            }
            let output = check(&format!(". {{\n{fragment}\nwhoami\n}}\n"));
            assert!(output.status.success(), "{name}: {fragment}: {}", stderr(&output));
        }
    }
}
