//! Snapshots: what comes back decides as what was kept.

use super::*;

/// A store with every kind of state in it, some of them logs of many entries.
fn filled_store() -> (MemoryStore, Vec<Limit>) {
    let store = MemoryStore::new(10_000);
    let mut limits = kinds();
    limits.push(built(Limit::per_hour(1_000).algorithm(Algorithm::SlidingWindowLog)));
    for limit in &limits {
        for key in 0..100u64 {
            for nth in 0..key {
                let _ = take(&store, limit, &format!("user:{key}"), at(600 + nth));
            }
        }
    }
    store.block(Key::from("blocked"), at(5_000), at(1));
    (store, limits)
}

#[test]
fn a_snapshot_changes_no_decision() {
    let (store, limits) = filled_store();
    let now = at(700);
    let (restored, report) = MemoryStore::new(10_000).restore(&store.to_bytes(now), now).unwrap();
    assert_eq!(report.dropped, 0);
    assert!(report.keys > 400, "{report:?}");
    for limit in &limits {
        for key in 0..100 {
            for later in [0, 1, 7, 40, 4_000] {
                let key = format!("user:{key}");
                let [old, new] =
                    [&store, &restored].map(|store| take(store, limit, &key, at(700 + later)));
                assert_eq!(old, new, "{limit}, {key}, {later} s later");
            }
        }
    }
    assert_eq!(take(&restored, &limits[0], "blocked", now).refusal(), Some(Refusal::Blocked));
}

#[test]
fn a_snapshot_survives_a_file_and_says_what_is_wrong_with_it() {
    let directory = std::env::temp_dir().join(format!("tollgate-snapshot-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("state");
    let (store, limits) = filled_store();
    store.save(&path, at(700)).unwrap();
    store.save(&path, at(700)).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left beside it");
    let (restored, _) = MemoryStore::new(10_000).load(&path, at(700)).unwrap();
    assert_eq!(
        take(&restored, &limits[0], "user:99", at(700)),
        take(&store, &limits[0], "user:99", at(700))
    );

    let bytes = std::fs::read(&path).unwrap();
    let said = |bytes: &[u8]| MemoryStore::new(10).restore(bytes, at(1)).unwrap_err().to_string();
    assert!(said(b"").contains("not a Tollgate snapshot"));
    assert!(said(b"something else").contains("not a Tollgate snapshot"));
    assert!(said(&bytes[..bytes.len() / 2]).contains("damaged"));
    let mut older = bytes.clone();
    older[8] = 1;
    assert!(
        said(&older).contains("has format 1, this version reads formats 2 and 3: use the version")
    );
    older[8] = 4;
    assert!(
        said(&older).contains("has format 4, this version reads formats 2 and 3: use the version")
    );
    for position in (8..bytes.len()).step_by(997) {
        let mut flipped = bytes.clone();
        flipped[position] ^= 0x10;
        assert!(said(&flipped).contains("start fresh"), "byte {position}");
    }
    assert!(MemoryStore::new(10).load(&directory.join("missing"), at(1)).is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_smaller_store_restores_what_fits() {
    let (store, _) = filled_store();
    let (small, report) = MemoryStore::new(16).restore(&store.to_bytes(at(700)), at(700)).unwrap();
    assert!(report.dropped > 0);
    assert!(small.stats().keys <= small.stats().slots);
}

/// The format of a snapshot, as it stands behind the magic.
fn format(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[8..16].try_into().unwrap())
}

/// Would catch: a format that an older program cannot read although nothing in it is new to that program.
#[test]
fn only_a_state_with_excess_needs_the_newer_format() {
    let (store, _) = filled_store();
    assert_eq!(format(&store.to_bytes(at(700))), 2);
    let narrow = |units: u64| built(Limit::per_day(units).burst(units).name("narrowed"));
    // N before and after: excess in ticks, in units, and worth more time than any debt may last.
    for (wide, narrow) in
        [(100, 20), (400_000, 7), (100_000, 1)].map(|(a, b)| (narrow(a), narrow(b)))
    {
        let (store, _) = filled_store();
        assert!(
            store.decide_one(&Check::new(&wide, "a").cost(wide.units() * 3 / 5), at(700)).allowed()
        );
        let _ = take(&store, &narrow, "a", at(700));
        assert_eq!(format(&store.to_bytes(at(700))), 3, "{narrow}");
        let (restored, _) =
            MemoryStore::new(10_000).restore(&store.to_bytes(at(700)), at(700)).unwrap();
        let left = |store: &MemoryStore, limit: &Limit| {
            store.decide_one(&Check::new(limit, "a").cost(0), at(700)).remaining()
        };
        assert_eq!(left(&restored, &wide), wide.units() - wide.units() * 3 / 5, "{narrow}");
        for limit in [&narrow, &wide] {
            assert_eq!(left(&restored, limit), left(&store, limit), "{narrow}");
            assert_eq!(take(&restored, limit, "a", at(900)), take(&store, limit, "a", at(900)));
        }
        store.reset(&wide, "a".into(), at(900));
        assert_eq!(format(&store.to_bytes(at(900))), 2, "{narrow}");
    }
}

/// Would catch: a file of a program that wrote excess in the plain format, refused as damaged.
#[test]
fn excess_in_the_plain_format_is_read() {
    let built = |units: u64| built(Limit::per_day(units).burst(units).name("narrowed"));
    let (wide, narrow) = (built(100), built(20));
    // A tick of the narrow limit is a microsecond.
    assert_eq!(narrow.drain(), 1);
    let store = MemoryStore::new(10_000);
    assert!(store.decide_one(&Check::new(&wide, "a").cost(60), at(700)).allowed());
    let _ = take(&store, &narrow, "a", at(700));
    let bytes = store.to_bytes(at(700));
    // Behind the units of the only state: mark, debt, excess, the ends of three tables, the checksum.
    let (end, units) = (bytes.len() - 8, bytes.len() - 7 * 8 - 4);
    assert_eq!(bytes[units..units + 4], [4, 0, 0, 0]);
    for number in [1, 2] {
        let mut older = bytes.clone();
        (older[8], older[units]) = (2, number);
        let sum = crate::hash::public_hash(&[&older[..end]]);
        older[end..].copy_from_slice(&sum.to_le_bytes());
        let (restored, report) = MemoryStore::new(10_000).restore(&older, at(700)).unwrap();
        assert_eq!(report.keys, 1, "{number}");
        for limit in [&wide, &narrow] {
            let left = |store: &MemoryStore| {
                store.decide_one(&Check::new(limit, "a").cost(0), at(900)).remaining()
            };
            assert_eq!(left(&restored), left(&store), "{number} {limit}");
        }
    }
}
