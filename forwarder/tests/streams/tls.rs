//! TLS: trusted authorities, the client's certificate, and timeouts.

use std::net::SocketAddr;
use std::sync::Arc;

use ::tls::TlsError;
use forwarder::{ExchangeError, TlsSettings, UpstreamProto, UpstreamTlsSpec};
use tokio::sync::mpsc;

use super::common::ms;
use super::{Asker, answer_all, assert_is_answer, now, server, swallow};

/// An authority, its certificates for `dns.example.org`, and the files for stanzas.
struct Certificates {
    directory: tempfile::TempDir,
    server: Arc<rustls::ServerConfig>,
    strict: Arc<rustls::ServerConfig>,
}

fn certificates() -> Certificates {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let signed = |names: &[&str]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = rcgen::CertificateParams::new(names).unwrap();
        (params.signed_by(&key, &authority).unwrap(), key)
    };
    let (certificate, key) = signed(&["dns.example.org", "127.0.0.1"]);
    let (client, client_key) = signed(&["client.example.org"]);
    let directory = tempfile::tempdir().unwrap();
    for (file, text) in [
        ("ca.pem", authority.pem()),
        ("cert.pem", client.pem()),
        ("key.pem", client_key.serialize_pem()),
        ("empty.pem", String::new()),
    ] {
        std::fs::write(directory.path().join(file), text).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = || {
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone());
        builder.with_safe_default_protocol_versions().unwrap()
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .unwrap();
    let chain = vec![certificate.der().clone()];
    let private = || rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let server = builder().with_no_client_auth().with_single_cert(chain.clone(), private()).unwrap();
    let strict = builder().with_client_cert_verifier(verifier).with_single_cert(chain, private()).unwrap();
    Certificates { directory, server: Arc::new(server), strict: Arc::new(strict) }
}

async fn tls_server(
    config: Arc<rustls::ServerConfig>,
) -> (SocketAddr, mpsc::UnboundedReceiver<Option<String>>) {
    let (names, seen) = mpsc::unbounded_channel();
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let (address, _) = server(move |_, stream| {
        let (acceptor, names) = (acceptor.clone(), names.clone());
        async move {
            let stream = acceptor.accept(stream).await?;
            let _ = names.send(stream.get_ref().1.server_name().map(ToOwned::to_owned));
            answer_all(stream).await
        }
    })
    .await;
    (address, seen)
}

#[tokio::test]
async fn tls_checks_the_name_and_sends_it() {
    let files = certificates();
    let authority = Some(files.directory.path().join("ca.pem").into());
    for (name, sent) in [(Some("dns.example.org"), Some("dns.example.org")), (None, None)] {
        let (address, mut seen) = tls_server(files.server.clone()).await;
        let spec = UpstreamTlsSpec {
            authority: authority.clone(),
            server_name: name.map(ToOwned::to_owned),
            ..UpstreamTlsSpec::default()
        };
        let mut asker = Asker::new(address, Some(TlsSettings::load(&spec).unwrap()));
        for id in 0..5 {
            asker.ask(id).await;
        }
        assert_eq!(seen.recv().await.unwrap().as_deref(), sent);
        assert_eq!(asker.upstream.metrics().conn_cache_misses(UpstreamProto::Tls), 1);
    }
}

#[tokio::test]
async fn certificates_that_do_not_fit_are_named() {
    let files = certificates();
    let path = |file: &str| ::files::ShownPath::from(files.directory.path().join(file));
    let rows = [
        (files.server.clone(), Some(path("ca.pem")), Some("other.example.org"), None, "NotValidForName"),
        (files.server.clone(), Some(path("cert.pem")), Some("dns.example.org"), None, "certificate"),
        (files.strict.clone(), Some(path("ca.pem")), Some("dns.example.org"), None, "CertificateRequired"),
        (
            files.strict.clone(),
            Some(path("ca.pem")),
            Some("dns.example.org"),
            Some((path("cert.pem"), path("key.pem"))),
            "",
        ),
    ];
    for (config, authority, name, client, expected) in rows {
        let (address, _seen) = tls_server(config).await;
        let spec = UpstreamTlsSpec { authority, server_name: name.map(ToOwned::to_owned), client };
        let mut asker = Asker::new(address, Some(TlsSettings::load(&spec).unwrap()));
        asker.send(1);
        match asker.next().await.1 {
            Ok(reply) => {
                assert_eq!(expected, "");
                assert_is_answer(1, &reply);
            }
            Err(error) => {
                let text = format!("{error} {error:?}");
                assert!(!expected.is_empty() && text.contains(expected), "{expected}: {text}");
            }
        }
    }
}

/// Self-signed certificates, as made by `openssl req -x509`.
#[tokio::test]
async fn an_upstream_that_shows_the_authority_itself_is_asked() {
    let mut params = rcgen::CertificateParams::new(vec!["dns.example.org".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let own = params.self_signed(&key).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own.pem");
    std::fs::write(&path, own.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.der().clone()], private)
        .unwrap();
    let (address, _seen) = tls_server(Arc::new(config)).await;
    let spec = UpstreamTlsSpec {
        authority: Some(path.into()),
        server_name: Some("dns.example.org".to_owned()),
        ..UpstreamTlsSpec::default()
    };
    let mut asker = Asker::new(address, Some(TlsSettings::load(&spec).unwrap()));
    asker.ask(1).await;
}

/// Errors that rustls knows by name are described in words.
#[tokio::test]
async fn certificate_error_has_cause() {
    let (files, other) = (certificates(), certificates());
    let issuer = "invalid peer certificate: its issuer is none of the authorities";
    let signature = "invalid peer certificate: its signature is not that of the authority of this name";
    let mut params = rcgen::CertificateParams::new(vec!["dns.example.org".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "unlike all others");
    let own = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let unlike = files.directory.path().join("unlike.pem");
    std::fs::write(&unlike, own.pem()).unwrap();
    for (authority, expected) in [(other.directory.path().join("ca.pem"), signature), (unlike, issuer)] {
        let (address, _seen) = tls_server(files.server.clone()).await;
        let spec = UpstreamTlsSpec {
            authority: Some(authority.into()),
            server_name: Some("dns.example.org".to_owned()),
            ..UpstreamTlsSpec::default()
        };
        let mut asker = Asker::new(address, Some(TlsSettings::load(&spec).unwrap()));
        asker.send(1);
        let error = asker.next().await.1.unwrap_err().to_string();
        assert_eq!(error, format!("tls {address}: {expected}"));
    }
}

#[tokio::test]
async fn an_upstream_that_never_shakes_hands_costs_no_more_than_the_deadline() {
    let (address, _) = server(|_, stream| swallow(stream)).await;
    let mut asker = Asker::new(address, Some(TlsSettings::load(&UpstreamTlsSpec::default()).unwrap()));
    asker.connect = ms(300);
    let start = now();
    asker.send(1);
    let error = asker.next().await.1.unwrap_err();
    assert!(matches!(error, ExchangeError::Timeout { .. }), "{error}");
    assert!((ms(290)..ms(2_000)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[test]
fn tls_settings_that_cannot_work_are_refused_with_their_file() {
    let files = certificates();
    let path = |file: &str| ::files::ShownPath::from(files.directory.path().join(file));
    let client = |certificate, key| UpstreamTlsSpec {
        client: Some((path(certificate), path(key))),
        ..UpstreamTlsSpec::default()
    };
    let authority = |file| UpstreamTlsSpec { authority: Some(path(file)), ..UpstreamTlsSpec::default() };
    let named = |name: &str| UpstreamTlsSpec { server_name: Some(name.into()), ..authority("ca.pem") };
    assert!(matches!(TlsSettings::load(&authority("none.pem")), Err(TlsError::File { .. })));
    assert!(matches!(TlsSettings::load(&authority("empty.pem")), Err(TlsError::Certificate(_))));
    assert!(matches!(TlsSettings::load(&authority("key.pem")), Err(TlsError::Certificate(_))));
    assert!(matches!(TlsSettings::load(&client("cert.pem", "cert.pem")), Err(TlsError::Key(_))));
    let another = rcgen::KeyPair::generate().unwrap();
    std::fs::write(path("another.pem"), another.serialize_pem()).unwrap();
    let error = TlsSettings::load(&client("cert.pem", "another.pem")).unwrap_err();
    let expected = format!(
        "{}: does not match the certificate in {}",
        path("another.pem").display(),
        path("cert.pem").display()
    );
    assert_eq!((error.to_string(), error.file()), (expected, Some(&path("another.pem"))));
    assert!(matches!(TlsSettings::load(&named("not a name")), Err(TlsError::ServerName(_))));
    let (first, second) = (named("a.example.org"), named("a.example.org"));
    assert_eq!(TlsSettings::load(&first).unwrap(), TlsSettings::load(&second).unwrap());
    assert_ne!(TlsSettings::load(&first).unwrap(), TlsSettings::load(&named("b.example.org")).unwrap());
}
