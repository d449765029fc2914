//! memcpy, memmove, memset, memcmp and bcmp in place of musl's on x86-64: its copy is `rep movs`,
//! which takes longer to start than a name or a record takes to copy, and its comparison goes byte
//! by byte.
//!
//! Short lengths take two loads that overlap in the middle, all loads before any store; long ones
//! blocks of 64 bytes; very long ones `rep movsb` or `rep stosb`, the fastest there. The compiler's
//! calls go here in the binary that is linked against musl; elsewhere only the tests use them.

use core::arch::asm;
use core::arch::x86_64::{
    __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8, _mm_storeu_si128,
};

/// The length from which `rep movsb` and `rep stosb` are the fastest.
const LONG: usize = 1024;

/// Keeps the compiler from turning a loop into a call of the function that contains it.
#[inline(always)]
fn no_idiom() {
    #[cfg(not(miri))]
    // SAFETY: nothing is executed.
    unsafe {
        asm!("", options(nostack, preserves_flags));
    }
}

/// # Safety
/// `from` points to 16 bytes.
#[inline(always)]
unsafe fn load(from: *const u8) -> __m128i {
    // SAFETY: the caller's promise; no alignment is required.
    unsafe { _mm_loadu_si128(from.cast()) }
}

/// # Safety
/// `to` points to 16 bytes.
#[inline(always)]
unsafe fn store(to: *mut u8, octets: __m128i) {
    // SAFETY: the caller's promise; no alignment is required.
    unsafe { _mm_storeu_si128(to.cast(), octets) }
}

/// # Safety
/// `from` points to 64 bytes.
#[inline(always)]
unsafe fn load_four(from: *const u8) -> [__m128i; 4] {
    // SAFETY: the caller's promise.
    unsafe { [load(from), load(from.add(16)), load(from.add(32)), load(from.add(48))] }
}

/// # Safety
/// `to` points to 64 bytes.
#[inline(always)]
unsafe fn store_four(to: *mut u8, [a, b, c, d]: [__m128i; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        store(to, a);
        store(to.add(16), b);
        store(to.add(32), c);
        store(to.add(48), d);
    }
}

/// Copies the first and the last `T` of `length` bytes, which are at most two of them.
///
/// # Safety
/// `to` and `from` point to `length` bytes, and `T` is an integer of at most that size.
#[inline(always)]
unsafe fn copy_ends<T: Copy>(to: *mut u8, from: *const u8, length: usize) {
    let last = length - size_of::<T>();
    // SAFETY: both offsets are within `length`, by the caller's promise.
    unsafe {
        let (first_octets, last_octets) =
            (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
        to.cast::<T>().write_unaligned(first_octets);
        to.add(last).cast::<T>().write_unaligned(last_octets);
    }
}

/// Copies up to 64 bytes, which may overlap.
///
/// # Safety
/// `to` and `from` point to `length` bytes.
#[inline(always)]
unsafe fn copy_short(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: each branch accesses only bytes that its condition guarantees.
    unsafe {
        if length > 32 {
            let (a, b) = (load(from), load(from.add(16)));
            let (c, d) = (load(from.add(length - 32)), load(from.add(length - 16)));
            store(to, a);
            store(to.add(16), b);
            store(to.add(length - 32), c);
            store(to.add(length - 16), d);
        } else if length >= 16 {
            let (a, b) = (load(from), load(from.add(length - 16)));
            store(to, a);
            store(to.add(length - 16), b);
        } else if length >= 8 {
            copy_ends::<u64>(to, from, length);
        } else if length >= 4 {
            copy_ends::<u32>(to, from, length);
        } else if length >= 2 {
            copy_ends::<u16>(to, from, length);
        } else if length == 1 {
            *to = *from;
        }
    }
}

/// Copies forward.
///
/// # Safety
/// `to` and `from` point to `length` bytes; if they overlap, `to` is the lower one.
#[inline(always)]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise; the last block is read before a block in front of it may
    // overwrite it.
    unsafe {
        if length <= 64 {
            return copy_short(to, from, length);
        }
        #[cfg(not(miri))]
        if length >= LONG {
            let (to_end, last) = (to.add(length - 8), from.add(length - 8).cast::<u64>().read_unaligned());
            asm!("rep movsq", inout("rcx") length / 8 => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags));
            to_end.cast::<u64>().write_unaligned(last);
            return;
        }
        let last = length - 64;
        let end = load_four(from.add(last));
        let mut at = 0;
        while at < last {
            store_four(to.add(at), load_four(from.add(at)));
            at += 64;
            no_idiom();
        }
        store_four(to.add(last), end);
    }
}

/// Copies bytes that may overlap.
///
/// # Safety
/// `to` and `from` point to `length` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_overlapping(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise; backward, so that nothing is overwritten before it is read.
    unsafe {
        if length <= 64 || to.addr().wrapping_sub(from.addr()) >= length {
            return copy(to, from, length);
        }
        let start = load_four(from);
        let mut at = length;
        while at > 64 {
            at -= 64;
            store_four(to.add(at), load_four(from.add(at)));
            no_idiom();
        }
        store_four(to, start);
    }
}

/// Fills bytes with one value.
///
/// # Safety
/// `to` points to `length` bytes.
#[inline(always)]
pub(crate) unsafe fn fill(to: *mut u8, value: u8, length: usize) {
    let word = u64::from(value) * 0x0101_0101_0101_0101;
    // SAFETY: each branch accesses only bytes that its condition guarantees.
    unsafe {
        if length >= 16 {
            #[cfg(not(miri))]
            if length >= LONG {
                to.add(length - 8).cast::<u64>().write_unaligned(word);
                asm!("rep stosq", inout("rcx") length / 8 => _, inout("rdi") to => _, in("rax") word,
                    options(nostack, preserves_flags));
                return;
            }
            let piece = _mm_set1_epi8(value as i8);
            let mut at = 0;
            while length - at > 64 {
                store_four(to.add(at), [piece; 4]);
                at += 64;
                no_idiom();
            }
            while at < length - 16 {
                store(to.add(at), piece);
                at += 16;
                no_idiom();
            }
            store(to.add(length - 16), piece);
        } else if length >= 8 {
            to.cast::<u64>().write_unaligned(word);
            to.add(length - 8).cast::<u64>().write_unaligned(word);
        } else if length >= 4 {
            to.cast::<u32>().write_unaligned(word as u32);
            to.add(length - 4).cast::<u32>().write_unaligned(word as u32);
        } else if length >= 2 {
            to.cast::<u16>().write_unaligned(word as u16);
            to.add(length - 2).cast::<u16>().write_unaligned(word as u16);
        } else if length == 1 {
            *to = value;
        }
    }
}

/// Returns a number less than, equal to or greater than 0, by the first bytes that differ.
///
/// # Safety
/// `one` and `other` point to `length` bytes.
#[inline(always)]
pub(crate) unsafe fn compare(one: *const u8, other: *const u8, length: usize) -> i32 {
    // SAFETY: each branch accesses only bytes that its condition guarantees.
    unsafe {
        let mut at = 0;
        if length >= 16 {
            loop {
                let same = _mm_movemask_epi8(_mm_cmpeq_epi8(load(one.add(at)), load(other.add(at))));
                if same != 0xffff {
                    let differs = at + (!same).trailing_zeros() as usize;
                    return i32::from(*one.add(differs)) - i32::from(*other.add(differs));
                }
                if at == length - 16 {
                    return 0;
                }
                // The last block overlaps the one before it, which is equal.
                at = (at + 16).min(length - 16);
            }
        }
        if length >= 8 {
            for at in [0, length - 8] {
                let read = |from: *const u8| u64::from_be(from.add(at).cast::<u64>().read_unaligned());
                let (one, other) = (read(one), read(other));
                if one != other {
                    return if one < other { -1 } else { 1 };
                }
            }
            return 0;
        }
        while at < length {
            let (one, other) = (*one.add(at), *other.add(at));
            if one != other {
                return i32::from(one) - i32::from(other);
            }
            at += 1;
        }
    }
    0
}

/// Whether any bytes differ.
///
/// # Safety
/// `one` and `other` point to `length` bytes.
#[inline(always)]
pub(crate) unsafe fn differ(one: *const u8, other: *const u8, length: usize) -> bool {
    /// # Safety
    /// As for [`copy_ends`].
    #[inline(always)]
    unsafe fn ends<T: Copy + Into<u64>>(one: *const u8, other: *const u8, length: usize) -> bool {
        // SAFETY: both offsets are within `length`, by the caller's promise.
        let read = |from: *const u8, at| unsafe { from.add(at).cast::<T>().read_unaligned() }.into();
        let last = length - size_of::<T>();
        let both: u64 = (read(one, 0) ^ read(other, 0)) | (read(one, last) ^ read(other, last));
        both != 0
    }
    // SAFETY: each branch accesses only bytes that its condition guarantees.
    unsafe {
        match length {
            0 => false,
            1 => *one != *other,
            2..4 => ends::<u16>(one, other, length),
            4..8 => ends::<u32>(one, other, length),
            8..16 => ends::<u64>(one, other, length),
            _ => {
                let same = |at| {
                    let equal = _mm_cmpeq_epi8(load(one.add(at)), load(other.add(at)));
                    _mm_movemask_epi8(equal) == 0xffff
                };
                let mut at = 0;
                while at < length - 16 {
                    if !same(at) {
                        return true;
                    }
                    at += 16;
                }
                !same(length - 16)
            }
        }
    }
}

/// The symbols that the compiler calls.
#[cfg(all(target_env = "musl", not(test), not(miri)))]
mod called {
    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { super::copy(to, from, length) };
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { super::copy_overlapping(to, from, length) };
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn memset(to: *mut u8, value: i32, length: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { super::fill(to, value as u8, length) };
        to
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: the caller's promise is passed on.
        unsafe { super::compare(one, other, length) }
    }

    /// # Safety
    /// As in C.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
        // SAFETY: the caller's promise is passed on.
        unsafe { i32::from(super::differ(one, other, length)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length with a branch of its own, and both sides of each limit.
    fn lengths() -> impl Iterator<Item = usize> {
        let long = if cfg!(miri) { 0 } else { 3 };
        let most = if cfg!(miri) { 140 } else { 300 };
        (0..most).chain((0..long).map(|more| LONG - 1 + more))
    }

    fn octets(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8 ^ 0x5a).collect()
    }

    #[test]
    fn copy_stays_in_bounds() {
        for length in lengths() {
            for (to, from) in [(0, 0), (3, 1), (1, 8)] {
                let source = octets(length + 16);
                let mut target = vec![0xee; length + 32];
                // SAFETY: both have space for offset and length.
                unsafe { copy(target.as_mut_ptr().add(to), source.as_ptr().add(from), length) };
                assert_eq!(target[to..to + length], source[from..from + length], "{length}");
                assert!(target[..to].iter().chain(&target[to + length..]).all(|&octet| octet == 0xee));
            }
        }
    }

    #[test]
    fn overlapping_copy() {
        const AROUND: usize = 80;
        for length in lengths() {
            for (to, from) in [(0, 0), (0, 1), (1, 0), (0, 17), (17, 0), (31, 0), (0, 33), (70, 0), (0, 70)] {
                let mut moved = octets(length + AROUND);
                let mut expected = moved.clone();
                expected.copy_within(from..from + length, to);
                let at = moved.as_mut_ptr();
                // SAFETY: `AROUND` has space for either offset.
                unsafe { copy_overlapping(at.add(to), at.add(from), length) };
                assert_eq!(moved, expected, "{length} octets from {from} to {to}");
            }
        }
    }

    #[test]
    fn fill_stays_in_bounds() {
        for length in lengths() {
            for (value, at) in [(0, 1), (0xff, 0), (0x80, 3)] {
                let mut filled = octets(length + 8);
                let mut expected = filled.clone();
                expected[at..at + length].fill(value);
                // SAFETY: there is space for offset and length.
                unsafe { fill(filled.as_mut_ptr().add(at), value, length) };
                assert_eq!(filled, expected, "{length}");
            }
        }
    }

    #[test]
    fn compare_by_first_difference() {
        for length in lengths() {
            let one = octets(length);
            // SAFETY: each has that many bytes.
            let found = |other: &[u8]| unsafe {
                let (one, other) = (one.as_ptr(), other.as_ptr());
                (compare(one, other, length).signum(), differ(one, other, length))
            };
            assert_eq!(found(&one.clone()), (0, false), "{length}");
            for at in (0..length).step_by(if length > 300 { 97 } else { 1 }) {
                for (here, last) in [(0x80, 0), (0x01, 0xff), (0xff, 0x10)] {
                    let mut other = one.clone();
                    other[length - 1] ^= last;
                    other[at] = one[at] ^ here;
                    let order = one.as_slice().cmp(&other) as i32;
                    assert_eq!(found(&other), (order, order != 0), "{length} octets, at {at}");
                }
            }
        }
    }
}
