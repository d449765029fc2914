//! Octets for the next process, in memory that nobody can change any more (memfd_create(2), sealed).
//!
//! ```text
//! what it is and its version (16) | moment (8) | length (8) | SHA-256 of all that follows (32) | octets
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use sha2::{Digest as _, Sha256};

/// The most octets that are left or taken.
pub const MOST_OCTETS: usize = 16 << 20;

/// Leaves octets as they are at a moment, which is counted from the machine's boot.
///
/// # Errors
/// What the kernel says; more than [`MOST_OCTETS`].
pub fn seal(octets: &[u8], moment: Duration) -> io::Result<OwnedFd> {
    if octets.len() > MOST_OCTETS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let memory = memfd_create("localdns-warm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(WHAT);
    head[16..24].copy_from_slice(&(moment.as_nanos() as u64).to_le_bytes());
    head[24..32].copy_from_slice(&(octets.len() as u64).to_le_bytes());
    head[32..].copy_from_slice(&Sha256::digest(octets));
    file.write_all(&head)?;
    file.write_all(octets)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Reads what was left, and how long ago that was.
///
/// # Errors
/// `InvalidData` where it is nothing of this version, not whole, or not sealed; what the kernel says.
pub fn unseal(memory: OwnedFd, now: Duration) -> io::Result<(Vec<u8>, Duration)> {
    let refused = || io::Error::from(io::ErrorKind::InvalidData);
    // Of what is no such memory the kernel knows no seals.
    if !fcntl_get_seals(&memory)?.contains(SEALS) {
        return Err(refused());
    }
    let file = File::from(memory);
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let number = |at: usize| head[at..].first_chunk().map_or(0, |octets| u64::from_le_bytes(*octets));
    let length = usize::try_from(number(24)).ok().filter(|length| *length <= MOST_OCTETS);
    let length = length.ok_or_else(refused)?;
    if head[..16] != *WHAT || file.metadata()?.len() != (HEAD + length) as u64 {
        return Err(refused());
    }
    let mut octets = vec![0; length];
    file.read_exact_at(&mut octets, HEAD as u64)?;
    let since = now.checked_sub(Duration::from_nanos(number(16))).ok_or_else(refused)?;
    match head[32..] == *Sha256::digest(&octets) {
        true => Ok((octets, since)),
        false => Err(refused()),
    }
}

const WHAT: &[u8; 16] = b"localdns warm 2\n";
const HEAD: usize = 64;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(octets: &[u8], seals: SealFlags) -> OwnedFd {
        let mut file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(octets).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    #[test]
    fn what_was_left_is_read_with_its_age_and_nothing_else_is() {
        let (then, now) = (Duration::from_secs(1000), Duration::from_millis(1_001_500));
        let whole = {
            let left = seal(b"answers", then).unwrap();
            let copy = left.try_clone().unwrap();
            let (octets, since) = unseal(left, now).unwrap();
            assert_eq!((&octets[..], since), (&b"answers"[..], Duration::from_millis(1500)));
            let mut all = vec![0; HEAD + 7];
            File::from(copy).read_exact_at(&mut all, 0).unwrap();
            all
        };
        assert!(unseal(memory(&whole, SEALS), now).is_ok());
        // From before this boot.
        assert!(unseal(memory(&whole, SEALS), Duration::ZERO).is_err());
        assert!(unseal(memory(&whole, SealFlags::GROW), now).is_err(), "somebody may change it");
        assert!(unseal(File::open("/dev/null").unwrap().into(), now).is_err());
        for at in 0..whole.len() {
            if (16..24).contains(&at) {
                continue;
            }
            let mut changed = whole.clone();
            changed[at] ^= 0x80;
            assert!(unseal(memory(&changed, SEALS), now).is_err(), "octet {at}");
            assert!(unseal(memory(&whole[..at], SEALS), now).is_err(), "{at} octets");
        }
        let longer = [&whole[..], b"."].concat();
        assert!(unseal(memory(&longer, SEALS), now).is_err());
        assert!(seal(&vec![0; MOST_OCTETS + 1], then).is_err());
    }
}
