//! Snapshot of an index that outlives the process: it is restored before the API is reachable.
//!
//! ```text
//! magic and version | hash of the rest | watched objects and time | object | object | ..
//! ```
//! This module does not access files. Foreign or damaged snapshots are refused as a whole.

mod codec;

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::Index;
use crate::index::IndexedObject;
use kubernetes_api::Selector;
use kubernetes_api::objects::{Object, SinceEpoch};
use kubernetes_api::settings::{Access, PodWatch, ShownText, WatchConfig};

use codec::{Decoder, Encoder};

/// Maximum size of a snapshot; a million endpoints with names of ten letters are 20 MB.
pub const MAX_BYTES: usize = 64 << 20;

/// Why a snapshot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Not a snapshot, or a snapshot of another format version.
    #[error("expected a snapshot of this version, found another file")]
    Foreign,
    /// The checksum does not match.
    #[error("its checksum is wrong")]
    Damaged,
    /// A snapshot of another cluster, or with another selection of objects.
    #[error("it is of another cluster, or of other properties of `kubernetes`")]
    Another,
    /// Objects are invalid.
    #[error("its objects are invalid")]
    Malformed,
}

/// Encodes a snapshot of an index at `now`; `None` if it exceeds [`MAX_BYTES`].
pub fn write(index: &Index, access: &Access, wants: &WatchConfig, now: SinceEpoch) -> Option<Vec<u8>> {
    let mut to = Encoder([MAGIC, &[0; HASH]].concat());
    to.text(&identity(access, wants));
    to.number(u64::try_from(now.0.as_millis()).unwrap_or(u64::MAX));
    index.each(&mut |known| {
        // Stops at the limit, since the result is dropped.
        if to.0.len() <= MAX_BYTES {
            known.encode(&mut to);
        }
    });
    let Encoder(mut bytes) = to;
    let hash = Sha256::digest(&bytes[CONTENT..]);
    bytes[MAGIC.len()..CONTENT].copy_from_slice(&hash);
    (bytes.len() <= MAX_BYTES).then_some(bytes)
}

/// A validated snapshot: all its objects can be decoded.
pub struct Snapshot<'a> {
    /// Time of writing.
    pub written: SinceEpoch,
    objects: &'a [u8],
}

impl<'a> Snapshot<'a> {
    /// Validates a snapshot of [`write()`] for the same cluster and selection.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn read(bytes: &'a [u8], access: &Access, wants: &WatchConfig) -> Result<Self, SnapshotError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SnapshotError::Foreign)?;
        let (hash, content) = rest.split_first_chunk::<HASH>().ok_or(SnapshotError::Damaged)?;
        if *Sha256::digest(content) != *hash {
            return Err(SnapshotError::Damaged);
        }
        let mut from = Decoder::new(content);
        if *from.text()? != *identity(access, wants) {
            return Err(SnapshotError::Another);
        }
        let written = SinceEpoch(Duration::from_millis(from.number()?));
        let objects = from.rest();
        while from.object()?.is_some() {}
        Ok(Self { written, objects })
    }

    /// Returns its objects.
    pub fn objects(&self) -> impl Iterator<Item = Object> + use<'a> {
        let mut from = Decoder::new(self.objects);
        // All objects were decoded in `read`, so that none is skipped.
        std::iter::from_fn(move || from.object().ok().flatten())
    }
}

impl IndexedObject<'_> {
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

/// Returns a text that identifies cluster and selection. Snapshots store it, so its words must
/// stay.
fn identity(access: &Access, wants: &WatchConfig) -> String {
    let access = match access {
        Access::InCluster(account) => format!("in-cluster {account:?}"),
        Access::Endpoint { url, tls } => {
            let files = tls
                .as_ref()
                .map(|files| [&files.certificate, &files.key, &files.authority].map(|file| file.as_path()));
            format!("endpoint {:?} tls {files:?}", url.as_str())
        }
        Access::Kubeconfig { file, context } => {
            format!("kubeconfig {:?} {:?}", file.as_path(), context.as_ref().map(ShownText::as_str))
        }
    };
    let WatchConfig { endpoints, pod_names, zones, pods, imports, namespaces, labels, namespace_labels } =
        wants;
    let pods = pods.as_ref().map(|PodWatch { node, labels }| (node, labels));
    let [labels, namespace_labels] = [labels, namespace_labels].map(|one| one.as_ref().map(Selector::as_str));
    format!(
        "{access}; endpoints {endpoints}; pod_names {pod_names}; zones {zones}; pods {pods:?}; imports {imports}; \
         namespaces {namespaces:?}; labels {labels:?}; namespace_labels {namespace_labels:?}"
    )
}

/// Magic bytes; the number changes with the format.
const MAGIC: &[u8] = b"localdns kubernetes 2\n";
const HASH: usize = 32;
/// Start of the hashed content.
const CONTENT: usize = MAGIC.len() + HASH;

#[cfg(test)]
mod tests;
