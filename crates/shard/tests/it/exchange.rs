//! What members give each other, alone.

use std::thread;
use std::time::{Duration, Instant};

use shard::{Group, ShardError, share_memory};
use stage::Exchange;

use crate::double::{addresses, config};

/// Joined members.
pub fn joined(count: usize) -> Vec<Group> {
    let addresses = addresses(count);
    let groups: Vec<Group> =
        (0..count).map(|index| Group::start(config(index, &addresses)).unwrap()).collect();
    let joins: Vec<_> =
        groups.iter().cloned().map(|group| thread::spawn(move || group.join())).collect();
    joins.into_iter().for_each(|join| join.join().unwrap().unwrap());
    groups
}

/// Every member's way through `run`, on threads of their own.
fn each<T: Send + 'static>(
    groups: &[Group],
    run: impl Fn(usize, &mut dyn Exchange) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let threads: Vec<_> = groups
        .iter()
        .map(|group| {
            let (mut seat, run) = (group.seat(), run.clone());
            thread::spawn(move || run(seat.member().index, &mut seat))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

pub fn end(groups: &[Group]) {
    groups.iter().for_each(Group::shutdown);
}

#[test]
fn values_of_any_size_arrive_whole_in_member_order() {
    // Past a record, and past all pieces that may wait: 6 MB of a member that is late.
    let sizes = [[1, 0, 5], [5_120, 1, 5_120], [16_368, 16_369, 40_000], [0, 1_500_000, 3]];
    for (sizes, in_memory) in sizes.into_iter().flat_map(|sizes| [(sizes, false), (sizes, true)]) {
        let groups = joined(3);
        if in_memory {
            share_memory(&groups).unwrap();
        }
        let ends = each(&groups, move |index, exchange| {
            if index == 0 {
                thread::sleep(std::time::Duration::from_millis(50));
            }
            let values = |member: usize| (0..sizes[member]).map(move |i| (i * 3 + member) as f32);
            let own: Vec<f32> = values(index).collect();
            let mut all = vec![1.0; 3];
            for _ in 0..3 {
                exchange.gather(&own, &sizes, &mut all).unwrap();
            }
            all == (0..3).flat_map(values).collect::<Vec<f32>>()
        });
        assert_eq!(ends, [true; 3], "{sizes:?}");
        let given = groups.iter().map(|group| group.traffic().given_bytes);
        assert_eq!(given.collect::<Vec<_>>(), sizes.map(|size| 3 * 2 * 4 * size as u64));
        let met = if in_memory { 3 } else { 0 };
        assert!(groups.iter().all(|group| group.traffic().in_memory == met));
        end(&groups);
    }
}

#[test]
fn every_bit_of_a_value_arrives() {
    for in_memory in [false, true] {
        every_bit_arrives(in_memory);
    }
}

fn every_bit_arrives(in_memory: bool) {
    let groups = joined(2);
    if in_memory {
        share_memory(&groups).unwrap();
    }
    let odd = [f32::NAN, -0.0, f32::from_bits(0x7fa0_0001), f32::MIN_POSITIVE / 2.0];
    let ends = each(&groups, move |_, exchange| {
        let mut all = Vec::new();
        exchange.gather(&odd, &[4, 4], &mut all).unwrap();
        all.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    let bits = odd.map(f32::to_bits);
    assert_eq!(ends, [[bits, bits].concat(), [bits, bits].concat()]);
    end(&groups);
}

#[test]
fn members_that_expect_other_sizes_are_named() {
    for in_memory in [false, true] {
        other_sizes_are_named(in_memory);
    }
}

fn other_sizes_are_named(in_memory: bool) {
    let groups = joined(2);
    if in_memory {
        share_memory(&groups).unwrap();
    }
    let ends = each(&groups, |index, exchange| {
        let sizes = if index == 0 { [2, 3] } else { [2, 4] };
        let own = vec![0.0; sizes[index]];
        exchange.gather(&own, &sizes, &mut Vec::new()).map_err(|error| error.to_string())
    });
    let expected = "member 1: OtherRows: exchange 1: expected 3 values of it, found 4";
    assert_eq!(ends[0], Err(expected.into()));
    end(&groups);
}

#[test]
fn what_the_first_member_collects_the_others_only_give() {
    for in_memory in [false, true] {
        let groups = joined(3);
        if in_memory {
            share_memory(&groups).unwrap();
        }
        let ends = each(&groups, |index, exchange| {
            let (own, mut all) = (vec![index as f32; index + 1], vec![9.0]);
            exchange.collect(&own, &[1, 2, 3], &mut all).unwrap();
            let collected = all.clone();
            // Whatever comes next is counted on from there.
            exchange.gather(&own, &[1, 2, 3], &mut all).unwrap();
            (collected, all)
        });
        let all = vec![0.0, 1.0, 1.0, 2.0, 2.0, 2.0];
        let none = Vec::new();
        assert_eq!(ends, [(all.clone(), all.clone()), (none.clone(), all.clone()), (none, all)]);
        let given = groups.iter().map(|group| group.traffic().given_bytes);
        assert_eq!(given.collect::<Vec<_>>(), [2 * 4, 3 * 8, 3 * 12]);
        end(&groups);
    }
}

#[test]
fn a_member_that_dies_wakes_those_that_give_and_wait() {
    for in_memory in [false, true] {
        dies_and_wakes(in_memory);
    }
}

fn dies_and_wakes(in_memory: bool) {
    let groups = joined(3);
    if in_memory {
        share_memory(&groups).unwrap();
    }
    let (dying, waiting) = (groups[2].clone(), &groups[..2]);
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        dying.shutdown();
        Instant::now()
    });
    let ends = each(waiting, |index, exchange| {
        let sizes = [1, 3_000_000, 1];
        let own = vec![0.0; sizes[index]];
        let error = exchange.gather(&own, &sizes, &mut Vec::new()).unwrap_err();
        (error.member, Instant::now())
    });
    let died = killer.join().unwrap();
    for (member, ended) in ends {
        assert_eq!(member, 2);
        assert!(ended.saturating_duration_since(died) < Duration::from_secs(1));
    }
    end(&groups);
}

#[test]
fn members_at_another_exchange_are_named() {
    let groups = joined(2);
    let ends = each(&groups, |_, exchange| exchange.gather(&[1.0], &[1, 1], &mut Vec::new()));
    assert_eq!(ends, [Ok(()), Ok(())]);
    // A seat that counts anew gives part 1 where the first one's owner expects part 2.
    let (mut first, mut anew) = (groups[0].seat(), groups[1].seat());
    let other = thread::spawn(move || anew.gather(&[1.0], &[1, 1], &mut Vec::new()).map(|()| anew));
    first.gather(&[1.0], &[1, 1], &mut Vec::new()).unwrap();
    let mut anew = other.join().unwrap().unwrap();
    let other = groups[1].clone();
    let again = thread::spawn(move || other.seat().gather(&[1.0], &[1, 1], &mut Vec::new()));
    let ahead = first.gather(&[1.0], &[1, 1], &mut Vec::new()).unwrap_err().to_string();
    let behind = again.join().unwrap().unwrap_err().to_string();
    // Both see it; who is first closes the link, which may be all that the other hears.
    let named = [
        ahead == "member 1: OutOfTurn: expected part 2 of it, found Part 1",
        behind == "member 0: OutOfTurn: expected part 1 of it, found Part 2",
    ];
    assert!(named.contains(&true), "{ahead}, {behind}");
    assert!(anew.gather(&[1.0], &[1, 1], &mut Vec::new()).is_err());
    end(&groups);
}

#[test]
fn a_group_without_links_or_with_another_number_of_addresses_is_refused() {
    let two = addresses(2);
    let group = Group::start(config(0, &two)).unwrap();
    let error = group.seat().gather(&[], &[0, 0], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "member 0: the group has not joined");
    group.shutdown();
    assert_eq!(group.join().unwrap_err(), ShardError::Shutdown);
    for (index, count) in [(0, 1), (2, 2), (0, 9)] {
        let mut bad = config(index, &addresses(count));
        let error = Group::start(bad.clone()).unwrap_err().to_string();
        assert!(error.starts_with("BadGroup: member"), "{error}");
        bad.addresses.pop();
        bad.member = stage::Member { index: 0, count: 2 };
        if bad.addresses.len() != 2 {
            let error = Group::start(bad).unwrap_err().to_string();
            assert!(error.starts_with("BadGroup: expected 2 addresses"), "{error}");
        }
    }
}
