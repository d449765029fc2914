//! `tls CERT KEY [CA]`: the certificate of a server block's TLS endpoints, and the requirements for
//! clients.

mod client_auth;
mod files;
mod keylog;

use std::sync::Arc;

use ::files::ShownPath;
use corefile::{Directive, Located, Location, Word};
use tls::TlsError;

use plugin::SetupError;
use plugin::args::{Args, Result, bad, no_block, once, path, unknown_property};
use plugin::spec::{ParseContext, PluginSpec};

pub use self::files::{Certificates, Handshakes, ServerTls};
pub use client_auth::ClientAuth;

const PLUGIN: &str = "tls";

/// The parsed directive; no file is opened.
#[derive(Debug, Clone)]
pub struct TlsSpec {
    /// The directive's location.
    pub at: Location,
    /// The directive's settings.
    pub settings: Settings,
    /// The files with the locations of their words.
    pub files: Vec<(ShownPath, Location)>,
}

impl TlsSpec {
    /// Returns the location of the word to fix for this error.
    pub fn place_of(&self, error: &TlsError) -> &Location {
        let file = self.files.iter().find(|(path, _)| Some(path) == error.file());
        file.map_or(&self.at, |(_, at)| at)
    }
}

/// The settings of `tls`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The certificate with its chain.
    pub certificate: ShownPath,
    /// The certificate's private key.
    pub key: ShownPath,
    /// Authorities of clients' certificates; `None` for the system's.
    pub authority: Option<ShownPath>,
    /// Requirement for clients' certificates.
    pub client_auth: ClientAuth,
    /// The file of secrets for programs that decrypt recorded traffic.
    pub keylog: Option<ShownPath>,
}

/// Reads the one `tls` of a server block.
pub(crate) fn read(directives: &[&Directive], written: ParseContext<'_>) -> Result<Arc<dyn PluginSpec>> {
    let root = written.root();
    let directive = once(PLUGIN, directives)?;
    let acme = directive.body.iter().flatten().find(|property| property.name.text == "acme");
    if let (Some(property), true) = (acme, directive.args.is_empty()) {
        let error = SetupError::PropertyNotBuilt { plugin: PLUGIN, property: "acme" };
        return Err(Located::new(&property.name.at, error));
    }
    let mut args = Args::new(PLUGIN, directive, "CERT KEY [CA]");
    let mut files = Vec::new();
    let mut file = |word: &Word| {
        let path = path(root, word);
        files.push((path.clone(), word.at.clone()));
        path
    };
    let certificate = file(args.required()?);
    let key = file(args.required()?);
    let authority = args.optional().map(&mut file);
    args.end()?;
    let mut settings =
        Settings { certificate, key, authority, client_auth: ClientAuth::NoCert, keylog: None };
    for property in directive.body.iter().flatten() {
        no_block(PLUGIN, property)?;
        match property.name.text.as_str() {
            "client_auth" => {
                let mut args = Args::new(PLUGIN, property, ClientAuth::EXPECTED);
                let word = args.required()?;
                settings.client_auth =
                    ClientAuth::read(&word.text).ok_or_else(|| bad(PLUGIN, word, ClientAuth::EXPECTED))?;
                args.end()?;
            }
            "keylog" => {
                let mut args = Args::new(PLUGIN, property, "a file");
                settings.keylog = Some(file(args.required()?));
                args.end()?;
            }
            _ => return Err(unknown_property(PLUGIN, property, &["client_auth", "keylog"])),
        }
    }
    Ok(Arc::new(TlsSpec { at: directive.name.at.clone(), settings, files }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::read_corefile::tests::{parsed, refused, refused_properties};

    #[test]
    fn files_and_defaults() {
        let read = |lines: &str| parsed::<TlsSpec>(lines).unwrap().settings;
        let plain = read("tls a.pem /b.pem");
        assert_eq!(
            plain,
            Settings {
                certificate: "a.pem".into(),
                key: "/b.pem".into(),
                authority: None,
                client_auth: ClientAuth::NoCert,
                keylog: None
            }
        );
        let all = read("root /r\ntls a.pem /b.pem c.pem {\nclient_auth require\nkeylog k\n}");
        let paths = [all.certificate.as_path(), all.key.as_path()];
        assert_eq!(paths, [Path::new("/r/a.pem"), Path::new("/b.pem")]);
        assert_eq!((all.authority, all.keylog), (Some("/r/c.pem".into()), Some("/r/k".into())));
        for (word, expected) in [
            ("nocert", ClientAuth::NoCert),
            ("request", ClientAuth::Request),
            ("require", ClientAuth::Require),
            ("verify_if_given", ClientAuth::VerifyIfGiven),
            ("require_and_verify", ClientAuth::RequireAndVerify),
        ] {
            assert_eq!(read(&format!("tls a b {{\nclient_auth {word}\n}}")).client_auth, expected);
        }
    }

    #[test]
    fn errors_have_their_place() {
        refused(&[
            ("tls", "2:1: plugin/tls: `tls` needs CERT KEY [CA]"),
            ("tls a", "2:1: plugin/tls: `tls` needs CERT KEY [CA]"),
            ("tls a b c d", "2:11: plugin/tls: unexpected argument \"d\"; `tls` needs CERT KEY [CA]"),
            (
                "tls {\nacme dns.example.org\n}",
                "3:1: plugin/tls: the property `acme` of CoreDNS is not supported yet; remove it, or keep CoreDNS for this server block",
            ),
        ]);
        refused_properties(
            "tls a b",
            &[
                (
                    "client_auth",
                    "1: plugin/tls: `client_auth` needs nocert, request, require, verify_if_given or require_and_verify",
                ),
                (
                    "client_auth none",
                    "13: plugin/tls: \"none\" is not nocert, request, require, verify_if_given or require_and_verify",
                ),
                ("keylog", "1: plugin/tls: `keylog` needs a file"),
                ("keylog a b", "10: plugin/tls: unexpected argument \"b\"; `keylog` needs a file"),
                (
                    "client_aut nocert",
                    "1: plugin/tls: unknown property \"client_aut\"; did you mean `client_auth`?",
                ),
            ],
        );
    }
}
