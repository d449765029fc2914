//! The files `coredns.txt` in the directories of plugins: the comparisons of each plugin with
//! CoreDNS.
//!
//! A file has sections, each headed by a name in brackets. Lines that begin with `# ` are comments.
//! `\n` ends a line of a Corefile. [`crate::run::Setup`] describes the placeholders `@IP@`, `@DIR@`
//! and others.
//!
//! - `[corefile]`: server blocks that are accepted or refused. `both`, `none`, `coredns` or
//!   `localdns` names the server that accepts the directives behind it. Rows on which the servers
//!   differ follow `> WORDS`, a quotation from docs/differences.md. The first accepted row is the
//!   shortest use of the plugin, and one row has the directive twice.
//! - `[blocks]`: directives of a server block of the root zone. Names to query follow ` ? `;
//!   without them the standard queries are used.
//! - `[pages]`: server blocks in CoreDNS's documentation of the plugin. The names behind ` ? `, or
//!   the usual names, are queried with each of several plugins that answer after it. `whole ZONE
//!   DIRECTIVES` is a block that needs no other plugin.
//! - `[random]`: lines for random server blocks; see [`crate::grammar`].
//! - `[metrics]`: CoreDNS's metrics in the plugin's documentation are compared after all queries.
//!   `- FAMILY REASON` excludes one; `+ SAMPLE` adds one.

use std::path::Path;
use std::sync::LazyLock;

/// The file of one plugin.
pub(crate) struct PluginRows {
    /// The plugin's name, also that of its folder and its directive.
    pub(crate) name: String,
    /// CoreDNS's metrics on the plugin's page.
    pub(crate) families: Vec<String>,
    /// The sections: name and lines.
    sections: Vec<(String, Vec<String>)>,
}

impl PluginRows {
    /// The lines of a section.
    pub(crate) fn section(&self, name: &str) -> &[String] {
        let found = self.sections.iter().find(|(section, _)| section == name);
        found.map_or(&[], |(_, lines)| lines)
    }
}

/// The files of all plugins, by name.
pub(crate) fn plugins() -> &'static [PluginRows] {
    static ALL: LazyLock<Vec<PluginRows>> = LazyLock::new(|| {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/src"));
        let entries = std::fs::read_dir(folder).expect("plugins have a folder");
        let paths = entries.map(|entry| entry.expect("a folder can be read").path());
        let mut all: Vec<PluginRows> = paths.filter(|path| path.is_dir()).map(|path| read(&path)).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    });
    &ALL
}

fn read(folder: &Path) -> PluginRows {
    let text = |file: &str| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for line in text("coredns.txt").lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => {
                assert!(SECTIONS.contains(&name), "{}/coredns.txt: [{name}] is no section", folder.display());
                sections.push((name.to_owned(), Vec::new()));
            }
            None => {
                let (_, lines) = sections.last_mut().expect("a line stands in a section");
                lines.push(line.replace("\\n", "\n"));
            }
        }
    }
    let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
    PluginRows { name, families: families(&text("README.md")), sections }
}

/// CoreDNS's metrics in a page's section about metrics.
fn families(page: &str) -> Vec<String> {
    let metrics = page.split_once("\n## Metrics\n").expect("each page has its metrics").1;
    let metrics = metrics.split_once("\n## ").expect("the examples follow").0;
    let is_of_name = |c: char| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit();
    let words = metrics.split(|c| !is_of_name(c)).filter(|word| word.starts_with("coredns_"));
    words.map(str::to_owned).collect()
}

/// The names of sections.
const SECTIONS: &[&str] = &["corefile", "blocks", "pages", "random", "metrics"];
