//! Leased ceilings of other stores than Tidepool's own: kept here, carried out by the controller
//! that governs those stores, which is told of every change and of what is left of each lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_proto::control::{
    CeilingLease, CeilingLeased, ControlReport, ControlledStore, ceiling_within,
};
use tidepool_proto::control_page::{ControlPage, LeaseState};
use tidepool_proto::{Error, ErrorKind, Result};

use super::{CapacityLease, State};
use crate::ceiling::Ceiling;

/// Decisions kept for operators.
const EVENTS_MAX: usize = 64;

/// Ceilings by the names of their stores. None stays behind its lease.
#[derive(Debug, Default)]
pub(super) struct OtherCeilings(BTreeMap<String, Ceiling>);

impl OtherCeilings {
    /// Leases one from `now` on; whether it was the same before.
    fn lease(&mut self, request: &CeilingLease, now: Instant) -> bool {
        // Bounds of these stores are the controller's.
        let ceiling = self.0.entry(request.store.clone()).or_insert_with(|| Ceiling::new(u64::MAX));
        let before = ceiling.leased().map(|leased| leased.asked_bytes);
        let lease = Duration::from_millis(request.lease_ms);
        ceiling.lease(request.ceiling_bytes, lease, &request.source, now);
        before == Some(request.ceiling_bytes)
    }

    /// Forgets those whose lease ran out by `now`; whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, ceiling| !ceiling.expire(now));
        self.0.len() < before
    }

    /// When the next lease is over.
    fn until(&self) -> Option<Instant> {
        self.0.values().filter_map(Ceiling::until).min()
    }

    /// All of them, with what is left of their leases at `now`.
    pub fn list(&self, now: Instant) -> Vec<CeilingLease> {
        let leased = self.0.iter().filter_map(|(store, ceiling)| Some((store, ceiling.leased()?)));
        let leased = leased.map(|(store, leased)| CeilingLease {
            store: store.clone(),
            ceiling_bytes: leased.asked_bytes,
            lease_ms: leased.until.saturating_duration_since(now).as_millis() as u64,
            source: leased.source.clone(),
        });
        leased.collect()
    }
}

impl CapacityLease {
    /// See [`CapacityLease::lease_ceiling`].
    pub(super) fn lease_other(self: &Arc<Self>, request: &CeilingLease) -> Result<CeilingLeased> {
        self.start_watchdog()?;
        let mut state = self.shared.state.lock();
        let store = state.governed_store(&request.store)?;
        let repeated = state.other_ceilings.lease(request, Instant::now());
        drop(state);
        self.tell_ceilings();
        self.shared.changed.notify_all();
        let (least, most) = (store.capacity_min_bytes, store.capacity_configured_bytes);
        let ceiling_bytes = ceiling_within(request.ceiling_bytes, least, most);
        Ok(CeilingLeased { ceiling_bytes, capacity_bytes: store.capacity_bytes, repeated })
    }

    /// Has the controller ask for the ceilings.
    pub(super) fn tell_ceilings(&self) {
        self.page().ceilings_generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Has whoever looks at other stores ask for them.
    pub(super) fn tell_stores(&self) {
        self.page().stores_generation.fetch_add(1, Ordering::Relaxed);
    }
}

impl State {
    /// Keeps a report for operators; whether other stores are not as in the report before.
    pub(super) fn note(&mut self, report: Option<ControlReport>) -> bool {
        let Some(mut report) = report else { return false };
        report.fit();
        self.events.extend(report.events.drain(..));
        let surplus = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..surplus);
        let are_as_before =
            self.report.as_ref().is_some_and(|before| before.others().eq(report.others()));
        self.report = Some(report);
        !are_as_before
    }

    /// What the controller that governs says of a store.
    fn governed_store(&self, name: &str) -> Result<ControlledStore> {
        let governed = self.lease.state() == LeaseState::Governed;
        let report = self.report.as_ref().filter(|_| governed);
        let stores = report.map_or(&[][..], |report| &report.stores);
        stores.iter().find(|store| store.name == name).cloned().ok_or_else(|| {
            let detail = format!("no store `{name}` is under control");
            Error::new(ErrorKind::InvalidInput, "leasing a ceiling", detail)
                .remedy("`tidepool control status` lists those that are")
        })
    }

    /// The generation of the ceilings, and they themselves where the controller has others.
    pub(super) fn news_of_ceilings(
        &self,
        page: &ControlPage,
        known_generation: u64,
    ) -> (u64, Option<Vec<CeilingLease>>) {
        let generation = page.ceilings_generation.load(Ordering::Relaxed);
        let is_news = generation != known_generation;
        (generation, is_news.then(|| self.other_ceilings.list(Instant::now())))
    }

    /// When the next lease of a ceiling is over.
    pub(super) fn ceilings_until(&self) -> Option<Instant> {
        self.ceiling.until().into_iter().chain(self.other_ceilings.until()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(store: &str, ceiling_bytes: u64, lease_ms: u64) -> CeilingLease {
        CeilingLease { store: store.into(), ceiling_bytes, lease_ms, source: "plane".into() }
    }

    #[test]
    fn each_store_has_a_lease_of_its_own() {
        let (mut ceilings, now) = (OtherCeilings::default(), Instant::now());
        assert!(!ceilings.lease(&request("a", 5, 1000), now));
        assert!(!ceilings.lease(&request("b", 6, 3000), now));
        assert!(ceilings.lease(&request("a", 5, 2000), now), "the same again");
        let second = Duration::from_secs(1);
        assert_eq!(ceilings.until(), Some(now + 2 * second));
        assert!(!ceilings.expire(now + second));
        assert_eq!(
            ceilings.list(now + second),
            [request("a", 5, 1000), request("b", 6, 2000)],
            "with what is left"
        );
        assert!(ceilings.expire(now + 2 * second));
        assert_eq!(ceilings.list(now + 2 * second), [request("b", 6, 1000)]);
        assert!(ceilings.expire(now + 3 * second) && ceilings.until().is_none());
    }
}
