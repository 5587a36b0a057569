//! The choice of a peer: expected time, breakers, and when the PFS is better.

use std::time::Duration;

use tidepool_cluster::{Breaker, NodeName, PeerSettings, Peers, Time};

const BLOCK: u64 = 4 << 20;

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn seconds(count: u64) -> Time {
    Duration::from_secs(count)
}

/// One after another.
fn transfer(peers: &mut Peers, now: &mut Time, peer: &NodeName, took_ms: u64) {
    let took = Duration::from_millis(took_ms);
    peers.began(*now, peer, BLOCK);
    *now += took;
    peers.succeeded(*now, peer, BLOCK, took);
}

fn pfs_read(peers: &mut Peers, now: &mut Time, took_ms: u64) {
    let took = Duration::from_millis(took_ms);
    *now += took;
    peers.pfs_read(*now, BLOCK, took);
}

#[test]
fn the_faster_peer_is_chosen_until_it_is_busy() {
    let mut peers = Peers::new(PeerSettings::default());
    let (fast, slow) = (name("fast"), name("slow"));
    let both = [slow.clone(), fast.clone()];
    let mut now = Time::ZERO;
    for _ in 0..8 {
        transfer(&mut peers, &mut now, &fast, 10);
        transfer(&mut peers, &mut now, &slow, 25);
    }
    assert_eq!(peers.choose(Time::ZERO, &both), Some(fast.clone()));
    peers.began(Time::ZERO, &fast, 2 * BLOCK);
    assert_eq!(peers.choose(Time::ZERO, &both), Some(slow));
    let took = Duration::from_millis(20);
    peers.succeeded(now + took, &fast, 2 * BLOCK, took);
    assert_eq!(peers.choose(Time::ZERO, &both), Some(fast));
    assert_eq!(peers.choose(Time::ZERO, &[]), None);
}

#[test]
fn equals_are_chosen_in_turns() {
    let mut peers = Peers::new(PeerSettings::default());
    let all: Vec<NodeName> = (0..4).map(|index| name(&format!("n{index}"))).collect();
    let mut chosen = [0; 4];
    for _ in 0..400 {
        let peer = peers.choose(Time::ZERO, &all).unwrap();
        chosen[all.iter().position(|other| *other == peer).unwrap()] += 1;
    }
    assert!(chosen.iter().all(|&count| count > 50), "{chosen:?}");
}

#[test]
fn a_breaker_opens_and_probes_after_longer_and_longer_pauses() {
    let mut peers = Peers::new(PeerSettings::default());
    let only = [name("a")];
    let state = |peers: &Peers| peers.view()[0].breaker;
    for _ in 0..2 {
        peers.failed(seconds(0), &only[0], 0, false);
        assert!(peers.choose(seconds(0), &only).is_some(), "two failures are not three");
    }
    peers.failed(seconds(0), &only[0], 0, false);
    assert_eq!(peers.choose(seconds(0), &only), None);
    let mut now = Duration::ZERO;
    for pause in [1, 2, 4, 8, 16, 30, 30] {
        now += seconds(pause);
        assert_eq!(peers.choose(now - Duration::from_millis(1), &only), None, "{pause}");
        assert!(peers.choose(now, &only).is_some(), "a probe after {pause} s");
        assert_eq!(peers.choose(now, &only), None, "one probe at a time");
        assert_eq!(state(&peers), Breaker::HalfOpen);
        peers.failed(now, &only[0], 0, true);
        assert_eq!(state(&peers), Breaker::Open);
    }
    now += seconds(30);
    assert!(peers.choose(now, &only).is_some());
    peers.succeeded(now, &only[0], BLOCK, Duration::from_millis(9));
    assert_eq!(state(&peers), Breaker::Closed);
    peers.failed(now, &only[0], 0, true);
    assert_eq!(peers.choose(now, &only), None, "one timeout is enough");
}

#[test]
fn the_pfs_is_preferred_when_it_is_clearly_faster() {
    let mut peers = Peers::new(PeerSettings::default());
    let peer = name("a");
    let mut now = Time::ZERO;
    for _ in 0..7 {
        transfer(&mut peers, &mut now, &peer, 30);
        pfs_read(&mut peers, &mut now, 10);
        assert!(!peers.prefers_pfs(&peer, BLOCK), "not yet measured");
    }
    transfer(&mut peers, &mut now, &peer, 30);
    pfs_read(&mut peers, &mut now, 10);
    let preferred = (0..640).filter(|_| peers.prefers_pfs(&peer, BLOCK)).count();
    assert_eq!(preferred, 630, "every 64th finds out whether it is still so");
    for _ in 0..40 {
        transfer(&mut peers, &mut now, &peer, 14);
    }
    assert!(!peers.prefers_pfs(&peer, BLOCK), "1.4 times is not enough");
    assert!(!peers.prefers_pfs(&name("unknown"), BLOCK));
}

#[test]
fn transfers_beside_each_other_make_one_rate() {
    let mut peers = Peers::new(PeerSettings::default());
    let peer = name("a");
    let mut now = Time::ZERO;
    // Eight at once take 160 ms each, as one after another takes 20.
    for _ in 0..10 {
        let took = Duration::from_millis(160);
        (0..8).for_each(|_| peers.began(now, &peer, BLOCK));
        now += took;
        (0..8).for_each(|_| peers.succeeded(now, &peer, BLOCK, took));
    }
    let rate = BLOCK as f64 / 0.020;
    let measured = peers.view()[0].rate_bytes_per_s / rate;
    assert!((0.7..1.5).contains(&measured), "{measured} of the rate of the way");
    (0..20).for_each(|_| pfs_read(&mut peers, &mut now, 30));
    assert!(!peers.prefers_pfs(&peer, BLOCK), "it is slower");
    (0..64).for_each(|_| peers.began(now, &peer, BLOCK));
    assert!(!peers.prefers_pfs(&peer, BLOCK), "whatever is under way");
}
