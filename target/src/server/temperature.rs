//! How warm the drives are, from the kernel's sensors, for the SMART log.

use std::fs;
use std::path::Path;

/// 0 °C in kelvin, as NVMe rounds it.
const ZERO_CELSIUS_KELVIN: i64 = 273;

/// The temperature of a drive in kelvin, by its kernel name (`nvme0n1`); `None` if it has no sensor.
pub fn of_drive(kernel_name: &str) -> Option<u16> {
    of_device(&Path::new("/sys/class/block").join(kernel_name).join("device"))
}

/// The first sensor below a device's directory. The NVMe driver puts `hwmonN` there, others put it
/// into a directory `hwmon`.
fn of_device(device: &Path) -> Option<u16> {
    let sensors = [device.to_owned(), device.join("hwmon")];
    let entries = sensors.iter().filter_map(|path| fs::read_dir(path).ok()).flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("hwmon")).find_map(
        |entry| {
            let text = fs::read_to_string(entry.path().join("temp1_input")).ok()?;
            let millidegrees: i64 = text.trim().parse().ok()?;
            u16::try_from(millidegrees / 1000 + ZERO_CELSIUS_KELVIN).ok()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_either_place_and_nothing_where_there_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path();
        assert_eq!(of_device(device), None);
        fs::create_dir_all(device.join("hwmon/hwmon7")).unwrap();
        fs::write(device.join("hwmon/hwmon7/temp1_input"), "41850\n").unwrap();
        assert_eq!(of_device(device), Some(314));
        fs::create_dir_all(device.join("hwmon3")).unwrap();
        fs::write(device.join("hwmon3/temp1_input"), "-5000\n").unwrap();
        assert_eq!(of_device(device), Some(268));
        fs::write(device.join("hwmon3/temp1_input"), "none\n").unwrap();
        assert_eq!(of_device(device), Some(314));
    }
}
