//! Memory of devices, and host memory that they can reach.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::OnceLock;

use super::codes::{ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY};
use crate::abi::{Answer, Refusal};
use crate::settings;

/// Alignment of every address that the driver returns, in bytes.
const ALIGNMENT: usize = 256;
/// Bytes behind an allocation that fault; a multiple of the pages of every machine.
const FENCE: usize = 65536;
/// Value of fresh bytes: NaN in every format of floats, and -1.
const POISON: u8 = 0xff;
/// Bytes of the file that memory is mapped from, again and again. A multiple of the pages of
/// every machine, and large enough that no process runs out of mappings.
const POISONED: usize = 2 << 20;

/// Allocations by address.
#[derive(Default)]
pub(crate) struct Memory {
    device: BTreeMap<usize, Allocation>,
    pinned: BTreeMap<usize, Allocation>,
    /// Used bytes of each device.
    used: BTreeMap<i32, usize>,
    /// Devices that have loaded code.
    coded: BTreeSet<i32>,
}

struct Allocation {
    bytes: usize,
    /// The device that the allocation is charged to.
    device: i32,
    room: Room,
}

/// Kind of an allocation's memory.
enum Room {
    /// Pages, the last of which fault: address and bytes.
    Pages(usize, usize),
    /// The sanitizer's memory, which guards every byte around it.
    Heap,
}

impl Memory {
    /// Allocates memory of a device.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(crate) fn allocate(&mut self, device: i32, bytes: usize) -> Answer<usize> {
        if bytes == 0 {
            return Err(Refusal::new(INVALID_VALUE, "an allocation of no bytes"));
        }
        let used = self.used.entry(device).or_default();
        let after = used.saturating_add(taken(bytes));
        if after > settings::memory() {
            return Err(Refusal::quiet(OUT_OF_MEMORY));
        }
        let (address, room) = room(bytes)?;
        *used = after;
        let made = Allocation {
            bytes,
            device,
            room,
        };
        self.device.insert(address, made);
        Ok(address)
    }

    /// Charges memory that is no array, such as a graph's.
    ///
    /// # Errors
    /// The device has no memory left.
    pub(crate) fn charge(&mut self, device: i32, bytes: usize) -> Answer {
        let used = self.used.entry(device).or_default();
        let after = used.saturating_add(bytes);
        if after > settings::memory() {
            return Err(Refusal::quiet(OUT_OF_MEMORY));
        }
        *used = after;
        Ok(())
    }

    /// Frees charged memory.
    pub(crate) fn discharge(&mut self, device: i32, bytes: usize) {
        let used = self.used.entry(device).or_default();
        *used = used.saturating_sub(bytes);
    }

    /// Charges the code of kernels to a device, the first time.
    pub(crate) fn load_code(&mut self, device: i32) {
        if self.coded.insert(device) {
            *self.used.entry(device).or_default() += settings::code();
        }
    }

    /// Frees memory of a device.
    ///
    /// # Errors
    /// The address is no allocation, or somebody wrote outside of it.
    pub(crate) fn free(&mut self, address: usize) -> Answer {
        let known = self.device.remove(&address);
        let known = known.ok_or_else(|| not_ours("frees", address))?;
        if let Some(used) = self.used.get_mut(&known.device) {
            *used -= taken(known.bytes);
        }
        known.give_back(address)
    }

    /// Allocates host memory that devices reach.
    pub(crate) fn pin(&mut self, bytes: usize) -> Answer<usize> {
        let (address, room) = room(bytes.max(1))?;
        let made = Allocation {
            bytes,
            device: 0,
            room,
        };
        self.pinned.insert(address, made);
        Ok(address)
    }

    /// Frees host memory that devices reach.
    pub(crate) fn unpin(&mut self, address: usize) -> Answer {
        let known = self.pinned.remove(&address);
        let known = known.ok_or_else(|| not_ours("frees", address))?;
        known.give_back(address)
    }

    /// Free bytes and all bytes of a device.
    pub(crate) fn info(&self, device: i32) -> (usize, usize) {
        let all = settings::memory();
        let used = self.used.get(&device).copied().unwrap_or(0);
        (all.saturating_sub(used), all)
    }

    pub(crate) fn is_pinned(&self, address: usize) -> bool {
        let below = self.pinned.range(..=address).next_back();
        below.is_some_and(|(start, at)| address < start + at.bytes)
    }

    /// Refuses `bytes` bytes from `address` on, unless they are a device's.
    pub(crate) fn check(&self, address: usize, bytes: usize) -> Answer {
        let below = self.device.range(..=address).next_back();
        let inside = |(start, at): (&usize, &Allocation)| {
            let end = address.checked_add(bytes);
            end.is_some_and(|end| end <= start + at.bytes)
        };
        if bytes == 0 || below.is_some_and(inside) {
            return Ok(());
        }
        let reason = format!("{bytes} bytes are asked for at {}", self.describe(address));
        Err(Refusal::new(INVALID_VALUE, reason))
    }

    /// Description of an address, for errors.
    pub(crate) fn describe(&self, address: usize) -> String {
        let below = self.device.range(..=address).next_back();
        match below {
            Some((start, at)) if address - start <= at.bytes.max(FENCE) => {
                let (into, all) = (address - start, at.bytes);
                format!("{address:#x}, byte {into} of an allocation of {all}")
            }
            _ => format!("{address:#x}, which is no allocation's"),
        }
    }
}

impl Allocation {
    fn give_back(&self, address: usize) -> Answer {
        match self.room {
            Room::Heap => {
                // SAFETY: it came from `memalign`, and nobody has it any more.
                unsafe { libc::free(address as *mut libc::c_void) }
                Ok(())
            }
            Room::Pages(start, all) => {
                let offset = address - start;
                // SAFETY: the memory in front of the pages that fault.
                let room = unsafe { std::slice::from_raw_parts(start as *const u8, all - FENCE) };
                let (before, behind) = (&room[..offset], &room[offset + self.bytes..]);
                let written = |byte: &u8| *byte != POISON;
                let before = before.iter().rposition(written);
                let before = before.map(|at| at as isize - offset as isize);
                let behind = behind.iter().position(written);
                let behind = behind.map(|at| (self.bytes + at) as isize);
                // SAFETY: the pages are this allocation's alone, which ends.
                unsafe { libc::munmap(start as *mut libc::c_void, all) };
                let Some(at) = before.or(behind) else {
                    return Ok(());
                };
                let reason = format!("byte {at} of an allocation of {} was written", self.bytes);
                Err(Refusal::new(ILLEGAL_ADDRESS, reason))
            }
        }
    }
}

/// Bytes of a device that an allocation takes: large ones take whole units of 2 MiB.
fn taken(bytes: usize) -> usize {
    match bytes {
        0..0x10_0000 => bytes,
        _ => bytes.next_multiple_of(2 << 20),
    }
}

/// Poisoned memory that ends at a page that faults, or at the sanitizer's fence.
fn room(bytes: usize) -> Answer<(usize, Room)> {
    let none = || Refusal::new(OUT_OF_MEMORY, "the host has no memory");
    if settings::sanitizers().is_some() {
        // SAFETY: the alignment is a power of two.
        let at = unsafe { libc::memalign(ALIGNMENT, bytes) };
        if at.is_null() {
            return Err(none());
        }
        // SAFETY: `at` has that many bytes.
        unsafe { at.cast::<u8>().write_bytes(POISON, bytes) }
        return Ok((at as usize, Room::Heap));
    }
    let room = bytes.next_multiple_of(ALIGNMENT);
    let pages = room.next_multiple_of(page());
    let all = pages + FENCE;
    let start = map(None, all, libc::PROT_NONE, libc::MAP_ANONYMOUS, -1).ok_or_else(none)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let file = poisoned().ok_or_else(none)?;
    for at in (0..pages).step_by(POISONED) {
        let bytes = POISONED.min(pages - at);
        if map(Some(start + at), bytes, rights, 0, file).is_none() {
            // SAFETY: the pages are nobody's yet.
            unsafe { libc::munmap(start as *mut libc::c_void, all) };
            return Err(none());
        }
    }
    Ok((start + pages - room, Room::Pages(start, all)))
}

/// A file of [`POISONED`] bytes. Memory is a private copy of it, made page by page at the first
/// write: programs never touch most of the memory that they take, or not in tests.
fn poisoned() -> Option<libc::c_int> {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let make = || {
        // SAFETY: the name ends with a zero, and the file is nobody else's.
        let mut file = unsafe {
            let file = libc::memfd_create(c"poison".as_ptr(), libc::MFD_CLOEXEC);
            (file >= 0).then(|| File::from_raw_fd(file))?
        };
        file.write_all(&vec![POISON; POISONED]).ok()?;
        Some(file)
    };
    FILE.get_or_init(make).as_ref().map(AsRawFd::as_raw_fd)
}

/// Maps private pages, in place of the pages at an address, or anywhere.
fn map(
    at: Option<usize>,
    bytes: usize,
    rights: libc::c_int,
    flags: libc::c_int,
    file: libc::c_int,
) -> Option<usize> {
    let fixed = at.map_or(0, |_| libc::MAP_FIXED);
    let flags = libc::MAP_PRIVATE | fixed | flags;
    let at = at.unwrap_or_default() as *mut libc::c_void;
    // SAFETY: a fixed address is one of pages that the caller has to itself.
    let at = unsafe { libc::mmap(at, bytes, rights, flags, file, 0) };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

/// Bytes of a page of the machine's memory.
fn page() -> usize {
    // SAFETY: the call only asks.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(FENCE)
}

fn not_ours(does: &str, address: usize) -> Refusal {
    let reason = format!("the caller {does} {address:#x}, which is no allocation");
    Refusal::new(INVALID_VALUE, reason)
}

#[cfg(test)]
mod tests {
    use super::{ILLEGAL_ADDRESS, Memory, OUT_OF_MEMORY};

    #[test]
    fn memory_begins_as_nan_and_is_charged() {
        let mut memory = Memory::default();
        let (free, all) = memory.info(0);
        assert_eq!(free, all);
        let at = memory.allocate(0, 1000).expect("there is room");
        assert_eq!((at % 256, memory.info(0).0), (0, all - 1000));
        assert_eq!(memory.info(1).0, all);
        // SAFETY: that many bytes were allocated.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 1000) };
        assert!(bytes.iter().all(|byte| *byte == 0xff));
        let full = memory.allocate(0, all).expect_err("not a second time");
        assert_eq!(full.code, OUT_OF_MEMORY);
        memory.free(at).expect("it is ours");
        assert_eq!(memory.info(0).0, all);
        memory.free(at).expect_err("it is ours no more");
    }

    #[test]
    fn writing_around_an_allocation_is_found() {
        for (offset, words) in [(103, "byte 103 of"), (-2, "byte -2 of")] {
            let mut memory = Memory::default();
            let at = memory.allocate(0, 100).expect("there is room");
            // SAFETY: the room is larger than the allocation; the write outside of it is the
            // test.
            unsafe { (at as *mut u8).offset(offset).write(0) };
            let found = memory.free(at).expect_err("somebody wrote");
            assert_eq!(found.code, ILLEGAL_ADDRESS);
            assert!(found.reason.contains(words), "{}", found.reason);
        }
    }

    #[test]
    fn ranges_are_checked_to_their_last_byte() {
        let mut memory = Memory::default();
        let at = memory.allocate(0, 64).expect("there is room");
        memory.check(at + 60, 4).expect("inside");
        memory.check(at + 64, 0).expect("nothing");
        for (address, bytes) in [(at + 61, 4), (at - 1, 1), (8, 8), (at, usize::MAX)] {
            memory.check(address, bytes).expect_err("outside");
        }
    }
}
