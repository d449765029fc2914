//! The page that shows /status: one file; its content security policy allows its own style and
//! script by their hashes.

use std::sync::LazyLock;

use data_encoding::BASE64;
use hyper::header::HeaderValue;
use sha2::{Digest as _, Sha256};

/// The page.
pub(super) const HTML: &str = include_str!("status.html");

/// The page's policy (Content Security Policy Level 3): its own style and script, and requests to its own origin.
pub(super) fn policy() -> HeaderValue {
    static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
        let [style, script] = ["style", "script"].map(hash_of);
        let policy = format!(
            "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
    });
    POLICY.clone()
}

/// The policy's hash source of an element's text.
fn hash_of(element: &str) -> String {
    let inside = HTML
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let inside = inside.map_or("", |(inside, _)| inside);
    format!("sha256-{}", BASE64.encode(&Sha256::digest(inside)))
}
