//! Names of cloud vendors and distributions are data: no code contains them.

use crate::{ABOVE, is_test, metadata, sources_in, without_tests};

/// Parts of names of Azure's services and of OpenShift's registry.
const VENDORS: &[&str] = &[
    ".azure.",
    ".microsoft.",
    "microsoft.com",
    ".windows.",
    "azmk8s",
    "azurecr",
    "image-registry",
    "openshift.",
];
/// Names that are part of another program's interface.
const INTERFACES: &[(&str, &str)] = &[
    // The annotation that AKS's script sets on a node.
    ("node/run/src/annotate.rs", "kubernetes.azure.com/localdns-hosts-plugin"),
];

#[test]
fn vendor_names_are_data() {
    let metadata = metadata();
    let root = metadata.workspace_root.as_std_path();
    let mut seen = 0;
    for package in metadata.workspace_packages() {
        let name = package.name.as_str();
        if ABOVE.contains(&name) && name != "server" {
            continue;
        }
        let sources = package.manifest_path.parent().expect("a manifest lies in a directory").join("src");
        for file in sources_in(sources.as_std_path()) {
            let place = file.strip_prefix(root).expect("sources lie in the workspace").to_string_lossy();
            if is_test(&place) || !place.ends_with(".rs") {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("a source is text");
            for line in without_tests(&text).lines().filter(|line| !line.trim_start().starts_with("//")) {
                let is_interface =
                    INTERFACES.iter().any(|(file, words)| *file == place && line.contains(words));
                let vendor = VENDORS.iter().find(|word| line.to_lowercase().contains(**word));
                assert!(vendor.is_none() || is_interface, "{place}: {line}");
                seen += usize::from(is_interface);
            }
        }
    }
    assert_eq!(seen, INTERFACES.len(), "each exception stands where it is said to");
    for (data, of) in
        [("crates/refresh/data/clouds", "azure"), ("node/resolver/data/services", "image-registry")]
    {
        let text = std::fs::read_to_string(root.join(data)).expect("lists are files");
        assert!(text.contains(of), "{data} has the names that code has not");
    }
}
