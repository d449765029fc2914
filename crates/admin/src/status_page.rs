//! The page that shows /status: one file, whose style and script its policy knows by their hashes, and nothing from elsewhere.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use sha2::{Digest as _, Sha256};

/// The page.
pub(super) const HTML: &str = include_str!("status.html");

/// What a browser lets it do (Content Security Policy Level 3): its own style and script, and to ask where it came from.
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

/// As a policy names what stands between the tags of an element.
fn hash_of(element: &str) -> String {
    let inside = HTML
        .split_once(&format!("<{element}>"))
        .and_then(|(_, rest)| rest.split_once(&format!("</{element}>")));
    let inside = inside.map_or("", |(inside, _)| inside);
    format!("sha256-{}", STANDARD.encode(Sha256::digest(inside)))
}
