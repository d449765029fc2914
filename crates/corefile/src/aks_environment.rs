//! Selects the Corefile in the environment file of AKS LocalDNS. Works on text, opens no file.

use data_encoding::BASE64;

/// Why an environment file has no Corefile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariantError {
    /// None of the keys has a value.
    #[error(
        "no Corefile: none of LOCALDNS_COREFILE_WITH_HOSTS (with SHOULD_ENABLE_HOSTS_PLUGIN=true and a hosts file), LOCALDNS_COREFILE_BASE and LOCALDNS_BASE64_ENCODED_COREFILE is set; set one, or name a Corefile with -conf"
    )]
    None,
    /// The value is not base64.
    #[error("{key} is not base64: {error}; set it to the output of `base64 -w0 Corefile`")]
    Encoding {
        /// The key.
        key: &'static str,
        /// The decoding error.
        error: data_encoding::DecodeError,
    },
    /// The value is a Corefile without a server block, for example because only its first line was
    /// read.
    #[error("{key} is a Corefile without a server block; set it to the output of `base64 -w0 Corefile`")]
    Empty {
        /// The key.
        key: &'static str,
    },
}

/// Returns the Corefile that an environment file selects, and its key: the Corefile with the hosts
/// plugin if the plugin is enabled and its hosts file exists, else the base Corefile, else the one
/// of older images.
///
/// # Errors
/// [`VariantError`].
pub fn corefile_of(text: &str, hosts_file_is_there: bool) -> Result<(&'static str, Vec<u8>), VariantError> {
    let with_hosts =
        value(text, "SHOULD_ENABLE_HOSTS_PLUGIN").as_deref() == Some("true") && hosts_file_is_there;
    let keys = [
        with_hosts.then_some("LOCALDNS_COREFILE_WITH_HOSTS"),
        Some("LOCALDNS_COREFILE_BASE"),
        Some("LOCALDNS_BASE64_ENCODED_COREFILE"),
    ];
    let mut found = keys.into_iter().flatten().filter_map(|key| Some((key, value(text, key)?)));
    let (key, encoded) = found.find(|(_, value)| !value.is_empty()).ok_or(VariantError::None)?;
    let encoded: String = encoded.split_ascii_whitespace().collect();
    let decoded = BASE64.decode(encoded.as_bytes()).map_err(|error| VariantError::Encoding { key, error })?;
    match decoded.trim_ascii().is_empty() {
        true => Err(VariantError::Empty { key }),
        false => Ok((key, decoded)),
    }
}

/// Returns the value of the last assignment to `key`, as systemd reads an environment file: one
/// assignment per line, comments begin with `#` or `;`, values may be quoted.
fn value(text: &str, key: &str) -> Option<String> {
    let assigned = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        (name.trim_end() == key).then(|| quoted.unwrap_or(value).to_owned())
    };
    text.lines().filter_map(assigned).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = "LOCALDNS_COREFILE_WITH_HOSTS=d2l0aA==\n";
    const BASE: &str = "LOCALDNS_COREFILE_BASE=\"YmFzZQ==\"\n";
    const LEGACY: &str = "LOCALDNS_BASE64_ENCODED_COREFILE=bGVnYWN5\n";
    const WANTED: &str = "SHOULD_ENABLE_HOSTS_PLUGIN=true\n";

    /// The order of preference: the Corefile with hosts, the base, the one of older images.
    #[test]
    fn variant_order() {
        let all = [LEGACY, BASE, HOSTS, WANTED].concat();
        for (text, file, corefile) in [
            (all.clone(), true, "with"),
            (all, false, "base"),
            ([LEGACY, BASE, HOSTS, "SHOULD_ENABLE_HOSTS_PLUGIN=false\n"].concat(), true, "base"),
            ([LEGACY, HOSTS].concat(), true, "legacy"),
            ([LEGACY, WANTED].concat(), true, "legacy"),
            ([LEGACY, "LOCALDNS_COREFILE_BASE=\n"].concat(), true, "legacy"),
            (
                "  LOCALDNS_COREFILE_BASE = 'YmFz ZQ==' \n#LOCALDNS_COREFILE_BASE=xx\n".to_owned(),
                false,
                "base",
            ),
            (["LOCALDNS_COREFILE_BASE=xx\n", BASE].concat(), false, "base"),
        ] {
            let found = corefile_of(&text, file).map(|(_, found)| String::from_utf8(found).expect("text"));
            assert_eq!(found.as_deref(), Ok(corefile), "{text}");
        }
    }

    #[test]
    fn invalid_corefile_names_its_key() {
        for text in ["", "SHOULD_ENABLE_HOSTS_PLUGIN=true", HOSTS, "LOCALDNS_COREFILE_BASE"] {
            assert_eq!(corefile_of(text, false), Err(VariantError::None), "{text}");
        }
        for (value, error) in [
            ("!", "LOCALDNS_COREFILE_BASE is not base64: "),
            ("YmFzZQ", "LOCALDNS_COREFILE_BASE is not base64: "),
            (
                "Cg==",
                "LOCALDNS_COREFILE_BASE is a Corefile without a server block; set it to the output of `base64 -w0 Corefile`",
            ),
        ] {
            let failure =
                corefile_of(&format!("LOCALDNS_COREFILE_BASE={value}"), false).expect_err("no Corefile");
            assert!(failure.to_string().starts_with(error), "{value}: {failure}");
        }
    }
}
