//! Bytes for the next process, in a sealed memfd (memfd_create(2)), which no process can change any more.
//!
//! ```text
//! magic and version (16) | time (8) | length (8) | SHA-256 of the bytes (32) | bytes
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};
use sha2::{Digest as _, Sha256};

/// Maximum number of bytes.
pub const MAX_BYTES: usize = 16 << 20;

/// Writes the bytes to a sealed memfd. `time` is the time since the machine's boot.
///
/// # Errors
/// The kernel's; more than [`MAX_BYTES`].
pub fn seal(bytes: &[u8], time: Duration) -> io::Result<OwnedFd> {
    if bytes.len() > MAX_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let memory = memfd_create("localdns-warm", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    let mut head = [0; HEAD];
    head[..16].copy_from_slice(MAGIC);
    head[16..24].copy_from_slice(&(time.as_nanos() as u64).to_le_bytes());
    head[24..32].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    head[32..].copy_from_slice(&Sha256::digest(bytes));
    file.write_all(&head)?;
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Returns the bytes of a memfd that [`seal`] wrote, and their age.
///
/// # Errors
/// `InvalidData` if it is of another version, incomplete, corrupt, from before this boot, or not sealed; the kernel's.
pub fn unseal(memory: OwnedFd, now: Duration) -> io::Result<(Vec<u8>, Duration)> {
    let refused = || io::Error::from(io::ErrorKind::InvalidData);
    // Fails for descriptors that are no memfd.
    if !fcntl_get_seals(&memory)?.contains(SEALS) {
        return Err(refused());
    }
    let file = File::from(memory);
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, 0)?;
    let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let length = usize::try_from(number(24)).ok().filter(|length| *length <= MAX_BYTES);
    let length = length.ok_or_else(refused)?;
    if head[..16] != *MAGIC || file.metadata()?.len() != (HEAD + length) as u64 {
        return Err(refused());
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, HEAD as u64)?;
    let age = now.checked_sub(Duration::from_nanos(number(16))).ok_or_else(refused)?;
    match head[32..] == *Sha256::digest(&bytes) {
        true => Ok((bytes, age)),
        false => Err(refused()),
    }
}

const MAGIC: &[u8; 16] = b"localdns warm 2\n";
const HEAD: usize = 64;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: &[u8], seals: SealFlags) -> OwnedFd {
        let mut file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file.into()
    }

    #[test]
    fn unseal_rejects_all_but_whole_and_sealed() {
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
        assert!(unseal(memory(&whole, SealFlags::GROW), now).is_err(), "can still be written");
        assert!(unseal(File::open("/dev/null").unwrap().into(), now).is_err());
        for at in 0..whole.len() {
            if (16..24).contains(&at) {
                continue;
            }
            let mut changed = whole.clone();
            changed[at] ^= 0x80;
            assert!(unseal(memory(&changed, SEALS), now).is_err(), "byte {at}");
            assert!(unseal(memory(&whole[..at], SEALS), now).is_err(), "{at} bytes");
        }
        let longer = [&whole[..], b"."].concat();
        assert!(unseal(memory(&longer, SEALS), now).is_err());
        assert!(seal(&vec![0; MAX_BYTES + 1], then).is_err());
    }
}
