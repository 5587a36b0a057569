//! What the readers of each user were seen to do of late. A user whose readers read heads alone
//! takes read-ahead from nobody else.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidepool_proto::Habit;

/// Users whose habits are kept. Beyond them, those of users who read nothing at present are
/// forgotten.
const USERS_MAX: usize = 256;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Habits(Mutex<HashMap<u32, Arc<Habit>>>);

impl Habits {
    /// The habit that the readers of a user share.
    pub fn of(&self, user_id: u32) -> Arc<Habit> {
        let mut users = self.0.lock();
        if users.len() >= USERS_MAX && !users.contains_key(&user_id) {
            users.retain(|_, habit| Arc::strong_count(habit) > 1);
            if users.len() >= USERS_MAX {
                return Arc::default();
            }
        }
        Arc::clone(users.entry(user_id).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_reads_heads_alone_takes_read_ahead_from_himself() {
        let habits = Habits::default();
        (0..100).for_each(|_| habits.of(1).note(false));
        assert!(!habits.of(1).goes_on());
        assert!(habits.of(2).goes_on());
    }

    #[test]
    fn no_more_is_kept_than_of_some_users() {
        let habits = Habits::default();
        let reading = habits.of(0);
        (0..100).for_each(|_| reading.note(false));
        for user_id in 0..10 * USERS_MAX as u32 {
            habits.of(user_id).note(true);
            assert!(habits.0.lock().len() <= USERS_MAX);
        }
        assert!(Arc::ptr_eq(&reading, &habits.of(0)), "who has files open is kept");
        let all: Vec<_> = (0..2 * USERS_MAX as u32).map(|user_id| habits.of(user_id)).collect();
        assert!(habits.0.lock().len() <= USERS_MAX);
        drop(all);
    }
}
