//! Writes what a package must say of the crates in the binary: their notices, `NOTICES`, and a bill
//! of materials (CycloneDX 1.5), `localdns.cdx.json`.
//!
//! `cargo run --example notices -- TARGET DIRECTORY` reads `cargo metadata` and the licence files in
//! the crates' archives. The same sources give the same bytes: no time, no paths, no random number.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, directory] = &arguments[..] else {
        return Err("for what, and where to? notices TARGET DIRECTORY".into());
    };
    let metadata = metadata(target)?;
    let crates = crates(&metadata)?;
    let directory = Path::new(directory);
    fs::create_dir_all(directory)?;
    fs::write(directory.join("NOTICES"), notices(&crates)?)?;
    let bill = serde_json::to_string_pretty(&bill(&crates, &checksums()?))?;
    fs::write(directory.join("localdns.cdx.json"), bill + "\n")?;
    Ok(())
}

/// A crate of another project in the binary.
struct Crate<'m> {
    package: &'m Value,
    /// The ids of the packages that it depends on.
    needs: Vec<&'m str>,
}

impl<'m> Crate<'m> {
    fn text(&self, field: &str) -> &'m str {
        self.package[field].as_str().unwrap_or_default()
    }

    /// Its licence as an SPDX expression; old manifests write `/` for OR.
    fn license(&self) -> String {
        self.text("license").replace('/', " OR ")
    }

    /// Its package URL.
    fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.text("name"), self.text("version"))
    }
}

fn metadata(target: &str) -> Result<Value> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", target]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The crates that the binary is linked with, by their ids, without the workspace's own, build
/// scripts and procedural macros.
fn crates(metadata: &Value) -> Result<BTreeMap<&str, Crate<'_>>> {
    let by_id = |list: &'static str, within: &'_ Value| -> Result<BTreeMap<String, usize>> {
        let all = within[list].as_array().ok_or("cargo metadata has no packages")?;
        let id = |(index, item): (usize, &Value)| Some((item["id"].as_str()?.to_owned(), index));
        Ok(all.iter().enumerate().filter_map(id).collect())
    };
    let packages = by_id("packages", metadata)?;
    let nodes = by_id("nodes", &metadata["resolve"])?;
    let package = |id: &str| packages.get(id).map(|&index| &metadata["packages"][index]);
    let is_macro = |package: &Value| {
        let kinds = package["targets"].as_array().into_iter().flatten().map(|target| &target["kind"][0]);
        kinds.into_iter().any(|kind| kind == "proc-macro")
    };
    let members = metadata["packages"].as_array().into_iter().flatten();
    let server = members.filter(|package| package["name"] == "server" && package["source"].is_null());
    let mut open: Vec<&str> = server.filter_map(|package| package["id"].as_str()).collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::new());
    while let Some(id) = open.pop() {
        let Some(package) = package(id).filter(|package| !is_macro(package)) else { continue };
        if !seen.insert(id) {
            continue;
        }
        let node = nodes.get(id).map_or(&Value::Null, |&index| &metadata["resolve"]["nodes"][index]);
        let is_linked = |needed: &&Value| {
            let mut kinds = needed["dep_kinds"].as_array().into_iter().flatten();
            kinds.any(|kind| kind["kind"].is_null())
        };
        let needs = node["deps"].as_array().into_iter().flatten().filter(is_linked);
        let needs: Vec<_> = needs.filter_map(|needed| needed["pkg"].as_str()).collect();
        open.extend(&needs);
        if !package["source"].is_null() {
            found.insert(id, Crate { package, needs });
        }
    }
    Ok(found)
}

/// The texts of licences and copyright notices, each once, behind the crates that have it.
fn notices(crates: &BTreeMap<&str, Crate<'_>>) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<&Crate<'_>>> = BTreeMap::new();
    let mut without = Vec::new();
    for one in crates.values() {
        let directory = Path::new(one.text("manifest_path")).parent().ok_or("a crate without directory")?;
        let mut own = BTreeSet::new();
        for file in fs::read_dir(directory)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().to_uppercase();
            let names = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
            if names.iter().any(|start| name.starts_with(start)) && file.file_type()?.is_file() {
                own.insert(String::from_utf8_lossy(&fs::read(file.path())?).replace('\r', ""));
            }
        }
        if own.is_empty() {
            without.push(one);
        }
        for text in own {
            texts.entry(text.trim_end().to_owned()).or_default().push(one);
        }
    }
    let mut groups: Vec<_> = texts.into_iter().collect();
    groups.sort_by(|one, other| one.1[0].purl().cmp(&other.1[0].purl()).then_with(|| one.0.cmp(&other.0)));
    let mut out = "localdns contains these crates of other projects.\n".to_owned();
    let list = |out: &mut String, crates: &[&Crate<'_>]| {
        for one in crates {
            let (name, version, from) = (one.text("name"), one.text("version"), one.text("repository"));
            writeln!(out, "{name} {version}, {}, {from}", one.license())?;
        }
        Ok::<_, std::fmt::Error>(())
    };
    for (text, crates) in &groups {
        write!(out, "\n{}\n", "=".repeat(80))?;
        list(&mut out, crates)?;
        write!(out, "\n{text}\n")?;
    }
    write!(
        out,
        "\n{}\nCrates without a licence file; the names of licences are those of spdx.org:\n",
        "=".repeat(80)
    )?;
    list(&mut out, &without)?;
    Ok(out)
}

/// The SHA-256 of each crate's archive by name and version, from Cargo.lock.
fn checksums() -> Result<BTreeMap<String, String>> {
    let lock = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"))?;
    let value = |block: &str, field: &str| -> Option<String> {
        let line = block.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "))?;
        Some(line.trim_matches('"').to_owned())
    };
    let entry = |block: &str| {
        let purl = format!("pkg:cargo/{}@{}", value(block, "name")?, value(block, "version")?);
        Some((purl, value(block, "checksum")?))
    };
    Ok(lock.split("[[package]]").filter_map(entry).collect())
}

fn bill(crates: &BTreeMap<&str, Crate<'_>>, checksums: &BTreeMap<String, String>) -> Value {
    let component = |one: &Crate<'_>| {
        let purl = one.purl();
        let mut component = json!({
            "type": "library",
            "bom-ref": purl,
            "name": one.text("name"),
            "version": one.text("version"),
            "licenses": [{ "expression": one.license() }],
            "purl": purl,
        });
        if let Some(checksum) = checksums.get(&purl) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    };
    let depends = |one: &Crate<'_>| {
        let needs = one.needs.iter().filter_map(|id| Some(crates.get(id)?.purl()));
        json!({ "ref": one.purl(), "dependsOn": needs.collect::<BTreeSet<_>>() })
    };
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "localdns",
                "name": "localdns",
                "version": version,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
            },
        },
        "components": crates.values().map(component).collect::<Vec<_>>(),
        "dependencies": crates.values().map(depends).collect::<Vec<_>>(),
    })
}
