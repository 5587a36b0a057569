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

fn transfer(peers: &mut Peers, peer: &NodeName, took_ms: u64) {
    peers.began(Time::ZERO, peer, BLOCK);
    peers.succeeded(Time::ZERO, peer, BLOCK, Duration::from_millis(took_ms));
}

#[test]
fn the_faster_peer_is_chosen_until_it_is_busy() {
    let mut peers = Peers::new(PeerSettings::default());
    let (fast, slow) = (name("fast"), name("slow"));
    let both = [slow.clone(), fast.clone()];
    for _ in 0..8 {
        transfer(&mut peers, &fast, 10);
        transfer(&mut peers, &slow, 25);
    }
    assert_eq!(peers.choose(Time::ZERO, &both), Some(fast.clone()));
    peers.began(Time::ZERO, &fast, 2 * BLOCK);
    assert_eq!(peers.choose(Time::ZERO, &both), Some(slow));
    peers.succeeded(Time::ZERO, &fast, 2 * BLOCK, Duration::from_millis(20));
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
    for _ in 0..7 {
        transfer(&mut peers, &peer, 30);
        peers.pfs_read(BLOCK, Duration::from_millis(10));
        assert!(!peers.prefers_pfs(&peer, BLOCK), "not yet measured");
    }
    transfer(&mut peers, &peer, 30);
    peers.pfs_read(BLOCK, Duration::from_millis(10));
    let preferred = (0..640).filter(|_| peers.prefers_pfs(&peer, BLOCK)).count();
    assert_eq!(preferred, 630, "every 64th finds out whether it is still so");
    for _ in 0..40 {
        transfer(&mut peers, &peer, 14);
    }
    assert!(!peers.prefers_pfs(&peer, BLOCK), "1.4 times is not enough");
    assert!(!peers.prefers_pfs(&name("unknown"), BLOCK));
}
