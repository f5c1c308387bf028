//! Creating an array over drives that are not blank, which the operator has named one by one.
//!
//! Everything that can be refused is refused before the first drive is wiped: the drives are owned
//! from then on, those that were not named are blank, and the array is planned as if the others
//! were, too. What is wiped by then is told to whoever asks ([`Overwrite::victims`]); only
//! [`Overwrite::create`] writes.

use std::time::Duration;

use raidfabric_raid::assemble::{
    self, CreateError, CreatePlan, Description, Examined, NewArray, plan_create, wipe,
};
use raidfabric_raid::device::signature::Contents;
use raidfabric_raid::device::{Medium, OpenDevice};
use raidfabric_raid::metadata::private::PrivateArea;

use super::arrays::{self, Accepted, OpenArray};
use super::error::ArrayStartError;
use super::patient::PatientDevice;
use super::state::StateDirectory;
use crate::config::Array;
use crate::config::drives::Listed;

/// How long udev, or a command that has just ended, is waited for. A daemon that serves the drives
/// does not end by itself.
const PATIENCE: Duration = Duration::from_secs(1);

/// An array whose drives are ours, some of which are to be wiped.
pub struct Overwrite {
    name: String,
    new: NewArray,
    media: Vec<OpenDevice>,
    examined: Vec<Examined>,
    /// Indices of the drives that were named.
    victims: Vec<usize>,
    /// Another array will be created on it.
    is_below: bool,
    /// How long a drive may take for a request.
    member_timeout: Duration,
}

impl Overwrite {
    /// Takes the drives of an array and plans it; `victims` are the indices of those that may be
    /// wiped.
    ///
    /// # Errors
    /// [`ArrayStartError`]; nothing has been written.
    pub fn look(
        array: &Array,
        listed: &Listed,
        victims: Vec<usize>,
        homehost: Option<String>,
        state: Option<&StateDirectory>,
    ) -> Result<Self, ArrayStartError> {
        let name = array.name.clone();
        if let Some(uuid) = array.uuid {
            return Err(ArrayStartError::HasUuid { array: name, uuid });
        }
        arrays::all_present(&name, listed)?;
        let media = arrays::own_drives(&name, &listed.present, PATIENCE)?;
        let examined = arrays::examine_all(&name, &media)?;
        let new = arrays::new_array(array, homehost);
        let member_timeout = array.member_timeout;
        let is_below = false;
        let this = Self { name, new, media, examined, victims, is_below, member_timeout };
        this.plan_as_if_wiped()?;
        this.check_record(state)?;
        Ok(this)
    }

    fn drives_error(&self, source: CreateError) -> ArrayStartError {
        ArrayStartError::Drives { array: self.name.clone(), source: Box::new(source) }
    }

    fn plan_as_if_wiped(&self) -> Result<CreatePlan, ArrayStartError> {
        let mut examined = self.examined.clone();
        for (index, drive) in examined.iter_mut().enumerate() {
            if self.victims.contains(&index) {
                drive.contents = Contents::Blank;
                drive.private = PrivateArea::Absent;
                drive.newer_header = None;
                drive.bad_blocks = None;
            }
        }
        plan_create(&examined, &self.new).map_err(|source| self.drives_error(source))
    }

    /// An array of this name that existed is forgotten only if all its drives are named.
    fn check_record(&self, state: Option<&StateDirectory>) -> Result<(), ArrayStartError> {
        let Some(state) = state else { return Ok(()) };
        match state.record(&self.name)? {
            Some(record) if self.victims.len() < self.media.len() => {
                Err(ArrayStartError::Existed {
                    array: self.name.clone(),
                    uuid: record.uuid,
                    record: state.path_of(&self.name),
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether what is on its drives is taken as agreeing.
    #[must_use]
    pub fn assume_clean(mut self, assume_clean: bool) -> Self {
        self.new.assume_clean = assume_clean;
        self
    }

    /// Whether another array will be created on it.
    #[must_use]
    pub fn below(mut self, is_below: bool) -> Self {
        self.is_below = is_below;
        self
    }

    /// Whether all of its drives were named.
    pub fn is_of_all_drives(&self) -> bool {
        self.victims.len() == self.media.len()
    }

    /// The array's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The drives that are wiped, with what they hold now.
    pub fn victims(&self) -> Vec<Description> {
        let one = |(index, (medium, examined)): (usize, (&OpenDevice, &Examined))| {
            self.victims.contains(&index).then(|| Description {
                identity: medium.identity().clone(),
                size_bytes: medium.size_bytes(),
                contents: examined.contents.clone(),
            })
        };
        self.media.iter().zip(&self.examined).enumerate().filter_map(one).collect()
    }

    /// Wipes the drives that were named, and creates the array.
    ///
    /// # Errors
    /// [`ArrayStartError`]; it says what has been written.
    pub fn create(self, state: Option<&StateDirectory>) -> Result<OpenArray, ArrayStartError> {
        for medium in self.victims.iter().filter_map(|index| self.media.get(*index)) {
            wipe(medium).map_err(|source| ArrayStartError::Wipe {
                array: self.name.clone(),
                drive: medium.name(),
                source,
            })?;
        }
        // What is planned now rests on what is really there.
        let examined = arrays::examine_all(&self.name, &self.media)?;
        let left = self.victims.iter().filter_map(|index| examined.get(*index));
        if let Some(drive) = left.into_iter().find(|drive| drive.contents != Contents::Blank) {
            return Err(ArrayStartError::NotWiped {
                array: self.name.clone(),
                drive: drive.name.clone(),
                contents: drive.contents.to_string(),
            });
        }
        let mut plan =
            plan_create(&examined, &self.new).map_err(|source| self.drives_error(source))?;
        plan.blank_ends = self.is_below;
        let Self { name, media, member_timeout, .. } = self;
        let patient = |medium| PatientDevice::new(medium, member_timeout);
        let media = media.into_iter().map(patient).collect();
        let handle = assemble::create(&plan, media).map_err(|source| ArrayStartError::Drives {
            array: name.clone(),
            source: Box::new(source),
        })?;
        let accepted = Accepted::default();
        arrays::settle(arrays::from_handle(name, handle, true, &accepted)?, state)
    }
}
