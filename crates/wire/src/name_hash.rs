//! Lower-cases and hashes a name in one pass.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

/// Hash of a name, or part of one, in lower-case wire form; used by every table with names as keys.
/// Seeded per process, since clients choose the names.
#[inline]
pub fn hash_of(wire: &[u8]) -> u64 {
    let [seed, factor] = *seeds();
    let mut hash = seed ^ wire.len() as u64;
    pieces(wire, |piece| hash = mix(hash, piece, factor));
    hash
}

/// Combines a name's hash with another part of the key.
#[inline]
pub fn hash_with(hash: u64, more: u64) -> u64 {
    mix(hash, [more, 0], seeds()[1])
}

/// Copies a name in lower case and returns the hash of the copy. Length bytes are at most 63, below
/// 'A' (65), so they stay as they are.
///
/// Reads pieces of 16 bytes from the packet, not from the copy: wide loads right after narrower
/// stores would stall (store forwarding).
#[inline]
pub(crate) fn copy_lowered(to: &mut [u8], wire: &[u8]) -> u64 {
    let [seed, factor] = *seeds();
    let mut hash = seed ^ wire.len() as u64;
    if let (Some(last), Some(_)) = (wire.last_chunk::<PIECE>(), to.first_chunk::<PIECE>()) {
        let mut copy = |to: &mut [u8; PIECE], from: &[u8; PIECE]| {
            let piece = halves(from).map(lowered);
            hash = mix(hash, piece, factor);
            let [low, high] = piece.map(u64::to_le_bytes);
            to[..8].copy_from_slice(&low);
            to[8..].copy_from_slice(&high);
        };
        for (to, from) in to.as_chunks_mut().0.iter_mut().zip(wire.as_chunks().0) {
            copy(to, from);
        }
        if let Some(to) = to.last_chunk_mut() {
            copy(to, last);
        }
    } else if let (Some(first), Some(last)) = (wire.first_chunk::<8>(), wire.last_chunk::<8>()) {
        let piece = [first, last].map(|octets| lowered(u64::from_le_bytes(*octets)));
        let [first, last] = piece.map(u64::to_le_bytes);
        if let Some(to) = to.first_chunk_mut() {
            *to = first;
        }
        if let Some(to) = to.last_chunk_mut() {
            *to = last;
        }
        hash = mix(hash, piece, factor);
    } else {
        let mut few = [0; 8];
        for ((to, kept), from) in to.iter_mut().zip(&mut few).zip(wire) {
            *to = from.to_ascii_lowercase();
            *kept = *to;
        }
        hash = mix(hash, [u64::from_le_bytes(few), 0], factor);
    }
    hash
}

/// Calls `piece` for every 16 bytes of `wire`, once for a shorter one; the last pieces overlap.
#[inline]
fn pieces(wire: &[u8], mut piece: impl FnMut([u64; 2])) {
    if let Some(last) = wire.last_chunk::<PIECE>() {
        wire.as_chunks().0.iter().chain([last]).for_each(|octets| piece(halves(octets)));
    } else if let (Some(first), Some(last)) = (wire.first_chunk::<8>(), wire.last_chunk::<8>()) {
        piece([first, last].map(|octets| u64::from_le_bytes(*octets)));
    } else {
        let mut few = [0; 8];
        few.iter_mut().zip(wire).for_each(|(to, from)| *to = *from);
        piece([u64::from_le_bytes(few), 0]);
    }
}

#[inline]
fn halves(octets: &[u8; PIECE]) -> [u64; 2] {
    let octets = u128::from_le_bytes(*octets);
    [octets as u64, (octets >> 64) as u64]
}

/// Lower-cases eight bytes at once: the sum with the lower seven bits of each byte carries into its
/// highest bit if the byte is at least 'A', and in the other sum if it is above 'Z'.
#[inline]
fn lowered(octets: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let seven = octets & (EACH * 0x7f);
    let (from_a, above_z) = (seven + EACH * (0x80 - b'A' as u64), seven + EACH * (0x7f - b'Z' as u64));
    let upper = (from_a ^ above_z) & !octets & (EACH * 0x80);
    octets | upper >> 2
}

/// Folds a piece into a hash as foldhash does: both halves of a product, with a secret factor.
#[inline]
fn mix(hash: u64, [low, high]: [u64; 2], factor: u64) -> u64 {
    let product = u128::from(low ^ hash) * u128::from(high ^ factor);
    product as u64 ^ (product >> 64) as u64
}

/// Returns the hash seeds, which are drawn when the process reads its first name.
#[inline]
fn seeds() -> &'static [u64; 2] {
    static SEEDS: LazyLock<[u64; 2]> = LazyLock::new(|| {
        let state = RandomState::new();
        [0, 1].map(|which: u64| state.hash_one(which))
    });
    &SEEDS
}

/// Bytes of a piece: two registers.
const PIECE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_lowered_independently() {
        for octet in 0..=u8::MAX {
            for beside in [0, b'@', b'A', b'Z', b'[', b'a', 0x7f, 0x80, 0xc1, 0xff] {
                for at in 0..8 {
                    let mut octets = [beside; 8];
                    octets[at] = octet;
                    let expected = u64::from_le_bytes(octets.map(|octet| octet.to_ascii_lowercase()));
                    assert_eq!(lowered(u64::from_le_bytes(octets)), expected, "{octets:?}");
                }
            }
        }
    }
}
