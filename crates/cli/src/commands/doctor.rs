//! x
use crate::arguments::DoctorArguments;
use crate::exit::Outcome;
use tidepool_proto::Result;
pub fn doctor(_a: &DoctorArguments) -> Result<Outcome> {
    unimplemented!()
}
