//! Reads a kubeconfig: cluster and credentials of a context.

use std::path::Path;

use files::ShownPath;
use yaml_rust2::parser::{Event, Parser};
use yaml_rust2::{Yaml, YamlLoader};

use crate::settings::{ShownText, WatchError};

use super::client_config::{Api, Client, Credentials, NamedPem, Pem, access_error, file, name_of};

/// Returns the API of a context, or of the current one.
///
/// # Errors
/// [`WatchError::Access`] with the file and the cause.
pub(super) fn read(path: &ShownPath, context: Option<&ShownText>) -> Result<Api, WatchError> {
    let config = Config { path, yaml: load(path)? };
    let current = config.yaml["current-context"].as_str().map(ShownText::from);
    let context = context.or(current.as_ref()).filter(|context| !context.as_str().is_empty());
    let context = context.ok_or_else(|| config.error("no current-context; name one"))?;
    let context = config.named("contexts", "context", context)?;
    let name = |what: &str| {
        let name = context[what].as_str();
        let name = name.ok_or_else(|| config.error(&format!("its context has no {what}")))?;
        Ok(ShownText::from(name))
    };
    let cluster = config.named("clusters", "cluster", &name("cluster")?)?;
    let user = config.named("users", "user", &name("user")?)?;
    let server = cluster["server"].as_str().ok_or_else(|| config.error("its cluster has no server"))?;
    for (of, word) in [(cluster, "proxy-url"), (user, "exec"), (user, "auth-provider")] {
        if !of[word].is_badvalue() {
            return Err(config.error(&format!("{word} is not supported; use a token or a certificate")));
        }
    }
    if cluster["insecure-skip-tls-verify"].as_bool() == Some(true) {
        return Err(
            config.error("insecure-skip-tls-verify is not supported; name the API's certificate-authority")
        );
    }
    let client = match (config.pem(user, "client-certificate")?, config.pem(user, "client-key")?) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some(Client { certificate, key }),
        (None, Some(_)) => return Err(config.error("a client-key without its client-certificate")),
        (Some(_), None) => return Err(config.error("a client-certificate without its client-key")),
    };
    let pem = Pem {
        authority: config.pem(cluster, "certificate-authority")?,
        client,
        server_name: cluster["tls-server-name"].as_str().map(Into::into),
    };
    Api::at(server, pem, config.credentials(user))
}

fn load(path: &ShownPath) -> Result<Yaml, WatchError> {
    let invalid = |cause: &str| access_error(&name_of(path), cause);
    let text = String::from_utf8(file(path)?).map_err(|_| invalid("expected YAML, found no text"))?;
    check(&text).map_err(|why| invalid(&why))?;
    let documents = YamlLoader::load_from_str(&text).map_err(|error| invalid(&error.to_string()))?;
    documents.into_iter().next().ok_or_else(|| invalid("expected a kubeconfig, found nothing"))
}

/// Refuses aliases and deep nesting, with which a few bytes would expand without limit.
fn check(text: &str) -> Result<(), String> {
    let (mut parser, mut depth) = (Parser::new_from_str(text), 0_usize);
    loop {
        match parser.next_token().map_err(|error| error.to_string())?.0 {
            Event::Alias(_) => {
                return Err("aliases (`*NAME`) are not supported; write the values instead".into());
            }
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            Event::StreamEnd => return Ok(()),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("lists and maps are nested more than {MAX_DEPTH} deep"));
        }
    }
}

/// Maximum nesting; a kubeconfig has 5.
const MAX_DEPTH: usize = 64;

struct Config<'a> {
    path: &'a ShownPath,
    yaml: Yaml,
}

impl Config<'_> {
    /// Returns the entry of a name in one of the three lists.
    fn named(&self, list: &str, what: &str, name: &ShownText) -> Result<&Yaml, WatchError> {
        let entries = self.yaml[list].as_vec().map_or(&[][..], Vec::as_slice);
        let entry = entries.iter().find(|entry| entry["name"].as_str() == Some(name.as_str()));
        entry.map(|entry| &entry[what]).ok_or_else(|| self.error(&format!("no {what} {name:?}")))
    }

    /// Returns the value of `WORD-data`, or the content of the file that `WORD` names.
    fn pem(&self, of: &Yaml, word: &str) -> Result<Option<NamedPem>, WatchError> {
        let field = || format!("{}: {word}", self.path.display()).into_boxed_str();
        if let Some(data) = of[&*format!("{word}-data")].as_str() {
            let text: Vec<u8> = data.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            let decoded = data_encoding::BASE64.decode(&text);
            let decoded = decoded.map_err(|_| self.error(&format!("{word}-data is not base64")))?;
            return Ok(Some((field(), decoded)));
        }
        let Some(path) = of[word].as_str() else { return Ok(None) };
        let path = self.resolve_path(path);
        Ok(Some((name_of(&path), file(&path)?)))
    }

    fn credentials(&self, user: &Yaml) -> Credentials {
        let text = |word: &str| user[word].as_str().filter(|text| !text.is_empty());
        if let Some(path) = text("tokenFile") {
            return Credentials::TokenFile(self.resolve_path(path));
        }
        if let Some(token) = text("token") {
            return Credentials::Fixed(format!("Bearer {token}").into());
        }
        match (text("username"), text("password")) {
            (Some(name), Some(password)) => {
                let pair = data_encoding::BASE64.encode(format!("{name}:{password}").as_bytes());
                Credentials::Fixed(format!("Basic {pair}").into())
            }
            _ => Credentials::None,
        }
    }

    /// Resolves a path relative to the kubeconfig.
    fn resolve_path(&self, path: &str) -> ShownPath {
        match Path::new(path).is_absolute() {
            true => path.into(),
            false => self.path.derive(self.path.parent().unwrap_or_else(|| Path::new("")).join(path)),
        }
    }

    fn error(&self, cause: &str) -> WatchError {
        access_error(&name_of(self.path), cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
apiVersion: v1
kind: Config
current-context: there
clusters:
- {name: near, cluster: {server: 'http://127.0.0.1:1'}}
- {name: far, cluster: {server: 'https://api.example.com:6443', certificate-authority: ca.crt, tls-server-name: kubernetes}}
- {name: lax, cluster: {server: 'https://api', insecure-skip-tls-verify: true}}
- {name: none}
users:
- {name: token, user: {token: abc}}
- {name: file, user: {tokenFile: token}}
- {name: basic, user: {username: a, password: b}}
- {name: run, user: {exec: {command: aws}}}
- {name: half, user: {client-key-data: AA==}}
- {name: odd, user: {client-key-data: '!'}}
contexts:
- {name: there, context: {cluster: near, user: token}}
- {name: away, context: {cluster: far, user: file}}
- {name: basic, context: {cluster: near, user: basic}}
- {name: run, context: {cluster: near, user: run}}
- {name: half, context: {cluster: near, user: half}}
- {name: odd, context: {cluster: near, user: odd}}
- {name: lax, context: {cluster: lax, user: token}}
- {name: none, context: {cluster: none, user: token}}
- {name: lost, context: {cluster: nowhere, user: token}}
- {name: empty}
";

    #[test]
    fn reads_contexts() {
        let directory = tempfile::tempdir().unwrap();
        let path = ShownPath::from(directory.path().join("config"));
        std::fs::write(&path, CONFIG).unwrap();
        let pem = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap().cert.pem();
        std::fs::write(directory.path().join("ca.crt"), pem).unwrap();
        let found = |context: Option<&str>| {
            read(&path, context.map(ShownText::from).as_ref())
                .map(|api| (api.authority, api.credentials))
                .map_err(|error| error.to_string())
        };
        let near = || "127.0.0.1:1".to_owned();
        assert_eq!(found(None), Ok((near(), Credentials::Fixed("Bearer abc".into()))));
        assert_eq!(found(Some("basic")), Ok((near(), Credentials::Fixed("Basic YTpi".into()))));
        let token = Credentials::TokenFile(directory.path().join("token").into());
        assert_eq!(found(Some("away")), Ok(("api.example.com:6443".to_owned(), token)));
        for (context, cause) in [
            ("run", "exec is not supported; use a token or a certificate"),
            ("half", "a client-key without its client-certificate"),
            ("odd", "client-key-data is not base64"),
            ("lax", "insecure-skip-tls-verify is not supported; name the API's certificate-authority"),
            ("none", "its cluster has no server"),
            ("lost", "no cluster \"nowhere\""),
            ("empty", "its context has no cluster"),
            ("nobody", "no context \"nobody\""),
        ] {
            assert_eq!(found(Some(context)), Err(format!("{}: {cause}", path.display())), "{context}");
        }
        // A "billion laughs" document: each line multiplies the size by ten.
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..5 {
            let all = [&*format!("*a{}", level - 1); 10].join(", ");
            bomb += &format!("a{level}: &a{level} [{all}]\n");
        }
        std::fs::write(&path, CONFIG.to_owned() + &bomb).unwrap();
        let cause = "aliases (`*NAME`) are not supported; write the values instead";
        assert_eq!(found(None), Err(format!("{}: {cause}", path.display())));
        for deep in ["[", "- ", "? ", "{a: "] {
            std::fs::write(&path, deep.repeat(100_000)).unwrap();
            assert!(found(None).is_err(), "{deep}");
        }
        for text in ["", "[", "\u{1}", "a: [", "current-context: 3", "- 1"] {
            std::fs::write(&path, text).unwrap();
            assert!(found(None).is_err(), "{text}");
        }
    }
}
