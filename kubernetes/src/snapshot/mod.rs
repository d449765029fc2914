//! What is known of a cluster, as octets that outlive the process: written of the index, and put into it again before the API
//! is heard.
//!
//! ```text
//! which form it has | a hash of all that follows | what was followed, and when | object | object | ..
//! ```
//! Knows no file. Octets that are not ours, or that were ours and are damaged, are refused as a whole.

mod codec;

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::Index;
use crate::index::Known;
use kubernetes_api::objects::{Object, SinceEpoch};
use kubernetes_api::settings::{Access, Wants};

use codec::{Decoder, Encoder};

/// Octets of the largest snapshot; a million endpoints with names of ten letters are 20 MB.
pub const MOST_OCTETS: usize = 64 << 20;

/// Why octets are no snapshot that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Another file, or one of another version.
    #[error("expected a snapshot of this version, found another file")]
    Foreign,
    /// Not what was written.
    #[error("its checksum is wrong")]
    Damaged,
    /// Of another cluster, or of other objects.
    #[error("it is of another cluster, or of other properties of `kubernetes`")]
    Another,
    /// Objects that make no sense.
    #[error("its objects make no sense")]
    Malformed,
}

/// The snapshot of an index, at `now`; `None` where it would be larger than [`MOST_OCTETS`].
pub fn write(index: &Index, access: &Access, wants: &Wants, now: SinceEpoch) -> Option<Vec<u8>> {
    let mut to = Encoder([FORM, &[0; HASH]].concat());
    to.text(&identity(access, wants));
    to.number(u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX));
    index.each(&mut |known| {
        // What is too large is thrown away; it need not become larger for that.
        if to.0.len() <= MOST_OCTETS {
            known.encode(&mut to);
        }
    });
    let Encoder(mut octets) = to;
    let hash = Sha256::digest(&octets[CONTENT..]);
    octets[FORM.len()..CONTENT].copy_from_slice(&hash);
    (octets.len() <= MOST_OCTETS).then_some(octets)
}

/// A snapshot that can be used: every object in it can be read.
pub struct Snapshot<'a> {
    /// When it was written.
    pub written: SinceEpoch,
    objects: &'a [u8],
}

impl<'a> Snapshot<'a> {
    /// Reads what [`write()`] wrote of a cluster that is followed in the same way.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn read(octets: &'a [u8], access: &Access, wants: &Wants) -> Result<Self, Unusable> {
        let rest = octets.strip_prefix(FORM).ok_or(Unusable::Foreign)?;
        let (hash, content) = rest.split_first_chunk::<HASH>().ok_or(Unusable::Damaged)?;
        if *Sha256::digest(content) != *hash {
            return Err(Unusable::Damaged);
        }
        let mut from = Decoder::new(content);
        if *from.text()? != *identity(access, wants) {
            return Err(Unusable::Another);
        }
        let written = SinceEpoch(Duration::from_millis(from.number()?));
        let objects = from.rest();
        while from.object()?.is_some() {}
        Ok(Self { written, objects })
    }

    /// Its objects.
    pub fn objects(&self) -> impl Iterator<Item = Object> + use<'a> {
        let mut from = Decoder::new(self.objects);
        // Whoever made this decoded all objects without an error, so none is skipped here.
        std::iter::from_fn(move || from.object().ok().flatten())
    }
}

impl Known<'_> {
    fn encode(self, to: &mut Encoder) {
        match self {
            Self::Service(service) => to.service(service),
            Self::Import(import) => to.import(&import.key, &import.target, &import.ports),
            Self::Slice(slice) => to.slice(slice),
            Self::Namespace(name) => to.namespace(name),
            Self::Pod(pod) => to.pod(pod),
        }
    }
}

/// What was followed, and where.
fn identity(access: &Access, wants: &Wants) -> String {
    format!("{access:?} {wants:?}")
}

/// What every snapshot begins with; its number changes with whatever follows.
const FORM: &[u8] = b"localdns kubernetes 1\n";
const HASH: usize = 32;
/// Where what the hash is of begins.
const CONTENT: usize = FORM.len() + HASH;

#[cfg(test)]
mod tests;
