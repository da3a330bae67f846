//! The sockets of a process, from the kernel's tables.

use std::collections::BTreeSet;
use std::fs;

/// Returns the ports that the processes listen on, over IPv4 and IPv6.
pub fn listening(pids: &[i32]) -> BTreeSet<u16> {
    // Inodes of all sockets that the processes hold.
    let held: BTreeSet<u64> = pids.iter().flat_map(|pid| inodes(*pid)).collect();
    let mut ports = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let rows = text.lines().skip(1).filter_map(row);
        ports.extend(
            rows.filter(|row| row.listens && held.contains(&row.inode))
                .map(|row| row.port),
        );
    }
    ports
}

/// Returns the UDP ports that the processes have opened.
pub fn datagram(pids: &[i32]) -> BTreeSet<u16> {
    let held: BTreeSet<u64> = pids.iter().flat_map(|pid| inodes(*pid)).collect();
    let mut ports = BTreeSet::new();
    for table in ["udp", "udp6"] {
        let text = fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
        let rows = text.lines().skip(1).filter_map(row);
        ports.extend(
            rows.filter(|row| held.contains(&row.inode))
                .map(|row| row.port),
        );
    }
    ports
}

struct Row {
    port: u16,
    listens: bool,
    inode: u64,
}

/// Parses `sl local_address rem_address st … inode`. All numbers but the inode are
/// hexadecimal.
fn row(line: &str) -> Option<Row> {
    const LISTEN: &str = "0A";
    let words: Vec<_> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.rsplit_once(':')?;
    Some(Row {
        port: u16::from_str_radix(port, 16).ok()?,
        listens: *words.get(3)? == LISTEN,
        inode: words.get(9)?.parse().ok()?,
    })
}

fn inodes(pid: i32) -> Vec<u64> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter_map(|target| {
            let target = target.to_str()?.to_owned();
            target
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()
        })
        .collect()
}
