use std::path::Path;

use super::{Hardware, parse_cores};

fn machine(files: &[(&str, &str)]) -> Hardware {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (path, content) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, content).expect("written");
    }
    Hardware::under(root.path())
}

const STATUS: (&str, &str) = ("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-2,8\n");
const MEMORY: (&str, &str) = (
    "proc/meminfo",
    "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\n",
);

#[test]
fn without_control_groups_the_machine_is_ours() {
    let found = machine(&[STATUS, MEMORY]);
    assert_eq!(found.cores, [0, 1, 2, 8]);
    assert_eq!(
        (found.total_memory, found.available_memory),
        (1_024_000, 614_400)
    );
    assert_eq!(found.memory_limit, None);
}

#[test]
fn the_narrowest_group_on_the_path_limits() {
    let found = machine(&[
        STATUS,
        MEMORY,
        ("proc/self/cgroup", "0::/pod/container\n"),
        ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
        ("sys/fs/cgroup/pod/memory.max", "400000\n"),
        ("sys/fs/cgroup/pod/memory.current", "300000\n"),
        (
            "sys/fs/cgroup/pod/memory.stat",
            "anon 5\ninactive_file 50000\n",
        ),
        ("sys/fs/cgroup/pod/container/cpu.max", "250000 100000\n"),
        ("sys/fs/cgroup/pod/cpu.max", "max 100000\n"),
    ]);
    assert_eq!(found.cores, [0, 1], "2.5 cores pay for two");
    assert_eq!(found.memory_limit, Some(400_000));
    assert_eq!(found.total_memory, 400_000);
    assert_eq!(found.available_memory, 150_000, "page cache can be dropped");
}

#[test]
fn version_1_groups_limit_as_well() {
    let found = machine(&[
        STATUS,
        MEMORY,
        ("proc/self/cgroup", "4:memory:/job\n3:cpuacct,cpu:/job\n"),
        ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n"),
        ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n"),
        ("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n"),
    ]);
    assert_eq!(found.cores, [0], "half a core is one thread");
    assert_eq!(
        (found.total_memory, found.available_memory),
        (500_000, 400_000)
    );
}

#[test]
fn no_limits_and_no_files_are_not_limits() {
    let found = machine(&[
        STATUS,
        MEMORY,
        ("proc/self/cgroup", "0::/\n4:memory:/\n3:cpu:/\n"),
        (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        ),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
    ]);
    assert_eq!(found.cores.len(), 4);
    assert_eq!(found.memory_limit, None);
    let nothing = Hardware::under(Path::new("/nowhere/at/all"));
    assert_eq!(nothing.cores, [0]);
}

#[test]
fn this_machine_has_a_core_and_memory() {
    let found = Hardware::detect();
    assert!(!found.cores.is_empty());
    assert!(found.available_memory <= found.total_memory);
}

#[test]
fn core_lists() {
    let table: [(&str, Option<&[usize]>); 9] = [
        ("0", Some(&[0])),
        ("0-3", Some(&[0, 1, 2, 3])),
        ("8,0-1, 9-10", Some(&[0, 1, 8, 9, 10])),
        ("1,1", Some(&[1])),
        ("", Some(&[])),
        ("3-1", None),
        ("a", None),
        ("0-", None),
        ("0-99999999", None),
    ];
    for (list, expected) in table {
        assert_eq!(parse_cores(list).ok().as_deref(), expected, "{list:?}");
    }
}

#[test]
fn a_group_with_more_than_the_machine_has_left_adds_nothing() {
    let found = machine(&[
        STATUS,
        MEMORY,
        ("proc/self/cgroup", "0::/pod\n"),
        ("sys/fs/cgroup/pod/memory.max", "900000\n"),
        ("sys/fs/cgroup/pod/memory.current", "1000\n"),
        ("sys/fs/cgroup/pod/cpu.max", "50000 100000\n"),
    ]);
    assert_eq!(found.memory_limit, Some(900_000));
    assert_eq!(found.available_memory, 614_400);
    assert_eq!(found.cores, [0], "half a core is one");
}
