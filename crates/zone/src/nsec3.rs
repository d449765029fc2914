//! The NSEC3 records of a zone (RFC 5155), apart from its names: an owner of NSEC3 records is no
//! name that a query can find (section 7.2.8).

#[cfg(test)]
mod tests;

use data_encoding::BASE32HEX_NOPAD;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};

use crate::records::{self, RrSet};
use crate::{Problem, Zone};

/// The hash of a name: SHA-1, the only algorithm (RFC 5155, section 11).
pub(crate) type Hash = [u8; 20];

/// The NSEC3 records of a zone and their RRSIG records, by the hash in the owner's name.
#[derive(Debug, Default)]
pub(crate) struct Nsec3s {
    /// The chain that denies names, in the order of the hashes, and behind it the owners of other
    /// chains, which are only transferred.
    pub(crate) owners: Box<[HashedOwner]>,
    /// Number of owners in the chain.
    pub(crate) chain: usize,
    /// RRsets of the owners, as in `Zone::data`.
    pub(crate) data: Box<[u8]>,
    /// How the chain hashes names.
    pub(crate) parameters: Parameters,
}

/// The owner of an NSEC3 record; 24 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashedOwner {
    pub(crate) hash: Hash,
    /// Offset of its RRsets in the data; they end where those of the next owner begin.
    pub(crate) data_at: u32,
}

/// How a chain hashes names (RFC 5155, section 3.1).
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Parameters {
    /// Times that SHA-1 is applied beyond the first.
    iterations: u16,
    salt: Box<[u8]>,
}

impl Parameters {
    /// Reads hash algorithm, flags, iterations and salt, with which the data of NSEC3 and NSEC3PARAM
    /// records begin.
    ///
    /// # Errors
    /// [`Problem::HashAlgorithm`], also for data that are too short, and [`Problem::Iterations`].
    pub(crate) fn read(data: &[u8]) -> Result<Self, Problem> {
        let &[algorithm, _, high, low, length, ref rest @ ..] = data else {
            return Err(Problem::HashAlgorithm(0));
        };
        let salt = rest.get(..usize::from(length)).filter(|_| algorithm == SHA1);
        let salt = salt.ok_or(Problem::HashAlgorithm(algorithm))?.into();
        match u16::from_be_bytes([high, low]) {
            iterations if iterations > MOST_ITERATIONS => Err(Problem::Iterations(iterations)),
            iterations => Ok(Self { iterations, salt }),
        }
    }

    /// Returns the hash of a name in lower case (RFC 5155, section 5).
    pub(crate) fn hash(&self, name: &[u8]) -> Hash {
        let mut hash = Hash::default();
        for round in 0..=self.iterations {
            let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            context.update(if round == 0 { name } else { &hash });
            context.update(&self.salt);
            hash.copy_from_slice(context.finish().as_ref());
        }
        hash
    }
}

impl Zone {
    /// Returns the NSEC3 records if they deny names.
    pub(crate) fn chain(&self) -> Option<&Nsec3s> {
        Some(&self.nsec3s).filter(|nsec3s| nsec3s.chain > 0)
    }
}

impl Nsec3s {
    /// Returns the index in the chain of the NSEC3 record whose owner is this hash, or else of the
    /// one that covers it: the last before it, for the first hashes the last of the chain.
    ///
    /// `None` if the zone has no chain.
    pub(crate) fn find(&self, hash: &Hash) -> Option<Denier> {
        let chain = &self.owners[..self.chain];
        Some(match chain.binary_search_by(|owner| owner.hash.cmp(hash)) {
            Ok(index) => Denier::Matches(index),
            Err(index) => Denier::Covers(index.checked_sub(1).or_else(|| chain.len().checked_sub(1))?),
        })
    }

    /// Returns the RRsets of an owner: NSEC3 and RRSIG records.
    pub(crate) fn sets(&self, index: usize) -> impl Iterator<Item = RrSet<'_>> {
        let end = self.owners.get(index + 1).map_or(self.data.len(), |next| next.data_at as usize);
        records::sets(&self.data[self.owners[index].data_at as usize..end])
    }

    /// Appends the name of an owner in wire form.
    pub(crate) fn write_name(&self, index: usize, origin: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&owner_label(&self.owners[index].hash));
        out.extend_from_slice(origin);
    }

    /// Bytes of memory outside of the struct.
    pub(crate) fn bytes(&self) -> usize {
        self.data.len() + size_of_val(&*self.owners)
    }
}

/// An NSEC3 record of the chain, by its index, and what it says of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denier {
    /// The hash is its owner: it lists the types of the name.
    Matches(usize),
    /// The hash is between its owner and the next: the name does not exist.
    Covers(usize),
}

/// Returns the first label of an owner in wire form: the hash in base32hex (RFC 5155, section 1.3).
pub(crate) fn owner_label(hash: &Hash) -> [u8; 33] {
    let mut label = [LABEL_BYTES as u8; 33];
    BASE32HEX_NOPAD.encode_mut(hash, &mut label[1..]);
    label.make_ascii_lowercase();
    label
}

/// Returns the hash in the owner's name of an NSEC3 record; `None` if it is not a hash in base32hex
/// directly below the origin.
pub(crate) fn hash_of(owner: &[u8], origin: &[u8]) -> Option<Hash> {
    let (label, parent) = owner
        .split_first()
        .filter(|(length, _)| usize::from(**length) == LABEL_BYTES)?
        .1
        .split_at_checked(LABEL_BYTES)?;
    let mut hash = Hash::default();
    let decoded = BASE32HEX_NOPAD.decode_mut(&label.to_ascii_uppercase(), &mut hash);
    (decoded == Ok(hash.len()) && parent.eq_ignore_ascii_case(origin)).then_some(hash)
}

const SHA1: u8 = 1;
/// Bytes of a hash in base32hex.
const LABEL_BYTES: usize = 32;
/// Maximum of additional iterations. RFC 9276, section 3.1, requires 0; a denial computes some three
/// hashes, and validators treat zones with more than 100 to 150 as unsigned.
const MOST_ITERATIONS: u16 = 150;
const _: () = assert!(size_of::<HashedOwner>() == 24);
