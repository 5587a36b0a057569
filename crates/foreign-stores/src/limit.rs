//! The limit of a server under control: the one it had before, those that the control set, and
//! whether the present one was set by the control.
//!
//! A limit that the control did not set was chosen by an administrator, or by the configuration of
//! a server that was restarted: it is the one to put back from then on. Each limit is told to the
//! witness before the server hears of it, so that a controller that is killed leaves nothing that
//! the next one takes for an administrator's.

use parking_lot::Mutex;
use tidepool_proto::{Error, ErrorKind, Result};

use tidepool_control::actuator::{LimitBefore, LimitWitness};

/// Limits that are remembered as ours while it is not known which of them is in force.
const SET_MAX: usize = 8;

/// A server with a limit.
pub trait Limited {
    /// Number of its process.
    fn pid(&mut self) -> Result<u32>;

    /// The present limit; 0 is none where the server has that.
    fn limit_bytes(&mut self) -> Result<u64>;

    /// Sets the limit.
    fn set_limit(&mut self, limit_bytes: u64) -> Result<()>;

    /// The limit is the one that is wanted; for servers that do more where it is set again.
    fn set_again(&mut self, _limit_bytes: u64) -> Result<()> {
        Ok(())
    }
}

/// The limit of one server.
pub struct Limit {
    state: Mutex<State>,
}

struct State {
    before: LimitBefore,
    witness: Option<LimitWitness>,
    /// The control ends: nothing is set any more.
    is_over: bool,
}

impl Limit {
    /// Of process `process_id`, which had this limit when it was found.
    pub fn new(process_id: u32, limit_bytes: u64) -> Limit {
        let before = LimitBefore { process_id, limit_bytes, set_bytes: Vec::new() };
        Limit { state: Mutex::new(State { before, witness: None, is_over: false }) }
    }

    /// What is to be put back, and what was set.
    pub fn before(&self) -> LimitBefore {
        self.state.lock().before.clone()
    }

    /// Tells `witness` from now on.
    pub fn on_change(&self, witness: LimitWitness) {
        self.state.lock().witness = Some(witness);
    }

    /// Takes what a controller left that was killed, where the present limit is one of its own:
    /// also by another process, for a limit may have been written into the server's configuration.
    pub fn adopt(&self, left: LimitBefore) {
        let mut state = self.state.lock();
        let (process_id, present) = (state.before.process_id, state.before.limit_bytes);
        if left.set_bytes.contains(&present) {
            let mut set_bytes = std::mem::take(&mut state.before.set_bytes);
            set_bytes.push(present);
            state.before = LimitBefore { process_id, set_bytes, ..left };
        }
        state.tell_or_log();
    }

    /// Finds out whether the control set the present limit. Answers the process of the server.
    pub fn look(&self, server: &mut dyn Limited) -> Result<u32> {
        self.state.lock().look(server).map(|(process_id, _)| process_id)
    }

    /// Sets a limit.
    pub fn set(&self, server: &mut dyn Limited, limit_bytes: u64) -> Result<()> {
        self.state.lock().set(server, limit_bytes)
    }

    /// The server must not be cut: it gets the limit back that it had before, if that is higher.
    pub fn raise_back(&self, server: &mut dyn Limited) -> Result<()> {
        let mut state = self.state.lock();
        let (_, present) = state.look(server)?;
        let before = state.before.limit_bytes;
        if present != 0 && (before == 0 || before > present) {
            state.set(server, before)?;
        }
        Ok(())
    }

    /// Control ends: no limit is set from now on but the one before.
    pub fn end(&self) {
        self.state.lock().is_over = true;
    }

    /// Sets the limit that was there before, after [`Limit::end`].
    pub fn put_back(&self, server: &mut dyn Limited) -> Result<()> {
        let mut state = self.state.lock();
        let (_, present) = state.look(server)?;
        let before = state.before.limit_bytes;
        if present != before {
            server.set_limit(before)?;
        }
        state.before.set_bytes.clear();
        state.tell_or_log();
        Ok(())
    }
}

impl State {
    /// The process of the server and its limit.
    fn look(&mut self, server: &mut dyn Limited) -> Result<(u32, u64)> {
        let (process_id, present) = (server.pid()?, server.limit_bytes()?);
        let is_ours = self.before.set_bytes.contains(&present);
        if is_ours && process_id == self.before.process_id {
            return Ok((process_id, present));
        }
        let before = match is_ours {
            true => LimitBefore { process_id, ..self.before.clone() },
            false => LimitBefore { process_id, limit_bytes: present, set_bytes: Vec::new() },
        };
        if self.before != before {
            self.before = before;
            self.tell_or_log();
        }
        Ok((process_id, present))
    }

    fn set(&mut self, server: &mut dyn Limited, limit_bytes: u64) -> Result<()> {
        if self.is_over {
            let what = "the control ends, and the limit is put back";
            return Err(Error::new(ErrorKind::StoreUnavailable, "setting a limit", what));
        }
        let (_, present) = self.look(server)?;
        if present == limit_bytes {
            return server.set_again(limit_bytes);
        }
        let known = self.before.set_bytes.clone();
        let set = &mut self.before.set_bytes;
        set.retain(|bytes| *bytes != limit_bytes);
        if set.len() == SET_MAX {
            set.remove(0);
        }
        set.push(limit_bytes);
        if let Err(error) = self.tell() {
            self.before.set_bytes = known;
            return self.give_unnoted(server, present, limit_bytes).and(Err(error));
        }
        // Where this fails, either limit may be in force.
        server.set_limit(limit_bytes)?;
        self.before.set_bytes = vec![limit_bytes];
        Ok(())
    }

    /// The limit cannot be noted, so the next controller would take it for an administrator's. The
    /// one that was there before needs no note: where more is wanted, that is given.
    fn give_unnoted(&self, server: &mut dyn Limited, present: u64, wanted: u64) -> Result<()> {
        let before = self.before.limit_bytes;
        let highest = |bytes: u64| if bytes == 0 { u64::MAX } else { bytes };
        match highest(before) > highest(present) && highest(before) <= highest(wanted) {
            true => server.set_limit(before),
            false => Ok(()),
        }
    }

    fn tell(&self) -> Result<()> {
        self.witness.as_ref().map_or(Ok(()), |witness| witness(&self.before))
    }

    /// Nothing is set here that would have to be put back.
    fn tell_or_log(&self) {
        if let Err(error) = self.tell() {
            tracing::error!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Fake {
        process_id: u32,
        limit_bytes: u64,
        obeys: bool,
    }

    impl Limited for Fake {
        fn pid(&mut self) -> Result<u32> {
            Ok(self.process_id)
        }

        fn limit_bytes(&mut self) -> Result<u64> {
            Ok(self.limit_bytes)
        }

        fn set_limit(&mut self, limit_bytes: u64) -> Result<()> {
            if !self.obeys {
                return Err(Error::new(ErrorKind::TimedOut, "asking", "no answer"));
            }
            self.limit_bytes = limit_bytes;
            Ok(())
        }
    }

    fn server(limit_bytes: u64) -> (Fake, Limit) {
        (Fake { process_id: 7, limit_bytes, obeys: true }, Limit::new(7, limit_bytes))
    }

    /// Limits in force after a few that are set, an administrator's choice, and the end.
    fn end_after(set: &[u64], chosen: Option<u64>) -> u64 {
        let (mut server, limit) = server(400);
        set.iter().for_each(|bytes| limit.set(&mut server, *bytes).unwrap());
        server.limit_bytes = chosen.unwrap_or(server.limit_bytes);
        limit.look(&mut server).unwrap();
        limit.set(&mut server, 50).unwrap();
        limit.end();
        limit.put_back(&mut server).unwrap();
        server.limit_bytes
    }

    #[test]
    fn what_an_administrator_chose_is_put_back() {
        assert_eq!(end_after(&[300, 20], None), 400);
        for chosen in [777, 100, 400, 0] {
            assert_eq!(end_after(&[300, 20], Some(chosen)), chosen);
            assert_eq!(end_after(&[], Some(chosen)), chosen, "before anything was set");
        }
    }

    #[test]
    fn a_restarted_server_has_its_own_limit_unless_it_is_one_of_ours() {
        for (present, put_back) in [(20, 400), (500, 500)] {
            let (mut server, limit) = server(400);
            limit.set(&mut server, 20).unwrap();
            (server.process_id, server.limit_bytes) = (8, present);
            assert_eq!(limit.look(&mut server).unwrap(), 8);
            limit.set(&mut server, 10).unwrap();
            assert_eq!(limit.before().process_id, 8);
            limit.end();
            limit.put_back(&mut server).unwrap();
            assert_eq!(server.limit_bytes, put_back);
        }
    }

    #[test]
    fn the_next_controller_tells_a_limit_of_the_killed_one_from_an_administrators() {
        for (present, process_id, put_back) in
            [(20, 7, 400), (20, 8, 400), (300, 7, 400), (777, 7, 777), (400, 7, 400)]
        {
            let (mut server, killed) = server(400);
            killed.set(&mut server, 300).unwrap();
            server.obeys = false;
            killed.set(&mut server, 20).unwrap_err();
            let left = killed.before();
            assert_eq!(left.set_bytes, [300, 20], "either may be in force");
            let mut server = Fake { process_id, limit_bytes: present, obeys: true };
            let next = Limit::new(process_id, present);
            next.adopt(left);
            next.put_back(&mut server).unwrap();
            assert_eq!(server.limit_bytes, put_back, "{present} by {process_id}");
        }
    }

    #[test]
    fn the_witness_knows_a_limit_before_the_server_and_forgets_what_is_put_back() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let (mut server, limit) = server(400);
        let of_witness = told.clone();
        limit.on_change(Box::new(move |before| {
            of_witness.lock().push(before.clone());
            Ok(())
        }));
        server.obeys = false;
        limit.set(&mut server, 20).unwrap_err();
        assert_eq!(told.lock().last().unwrap().set_bytes, [20]);
        server.obeys = true;
        limit.put_back(&mut server).unwrap();
        assert!(told.lock().last().unwrap().set_bytes.is_empty());
    }

    #[test]
    fn a_limit_that_cannot_be_noted_is_not_set_and_its_own_is_given_back() {
        let full = Arc::new(Mutex::new(false));
        let (mut server, limit) = server(400);
        let of_witness = full.clone();
        limit.on_change(Box::new(move |_| match *of_witness.lock() {
            true => Err(Error::new(ErrorKind::PermissionDenied, "writing", "no space")),
            false => Ok(()),
        }));
        limit.set(&mut server, 20).unwrap();
        *full.lock() = true;
        for (wanted, then) in [(10, 20), (300, 20), (500, 400), (30, 400)] {
            limit.set(&mut server, wanted).unwrap_err();
            assert_eq!(server.limit_bytes, then, "{wanted}");
        }
        *full.lock() = false;
        limit.set(&mut server, 30).unwrap();
        *full.lock() = true;
        limit.raise_back(&mut server).unwrap_err();
        assert_eq!(server.limit_bytes, 400, "writes would fail at less");
        limit.end();
        limit.put_back(&mut server).unwrap();
        assert_eq!((server.limit_bytes, limit.before().limit_bytes), (400, 400));
    }

    #[test]
    fn a_server_that_must_not_be_cut_gets_its_limit_back_and_nothing_follows_the_end() {
        for (before, set, then) in [(400, 20, 400), (0, 20, 0), (400, 900, 900)] {
            let (mut server, limit) = server(before);
            limit.set(&mut server, set).unwrap();
            limit.raise_back(&mut server).unwrap();
            assert_eq!(server.limit_bytes, then);
            limit.end();
            limit.set(&mut server, 10).unwrap_err();
            assert_eq!(server.limit_bytes, then);
        }
    }
}
