//! Writes files of pictures. Draws nothing itself.

use std::path::{Path, PathBuf};

use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_report::chart::Picture;
use tidepool_report::png;

fn to_png(svg: &str) -> Result<Vec<u8>> {
    png::of(svg)
        .map_err(|source| Error::new(ErrorKind::Internal, "drawing a picture", source.to_string()))
}

/// Writes `name.svg` and `name.png` into `directory`, which is made if it is missing; returns both.
pub fn write(directory: &Path, name: &str, picture: &Picture) -> Result<Vec<PathBuf>> {
    let svg = &picture.wide;
    put(
        directory,
        &[(format!("{name}.svg"), svg.as_bytes()), (format!("{name}.png"), &to_png(svg)?)],
    )
}

/// The same with `name-narrow.svg`, for a page that is read on a telephone.
pub fn write_for_page(directory: &Path, name: &str, picture: &Picture) -> Result<Vec<PathBuf>> {
    put(directory, &[(format!("{name}-narrow.svg"), picture.narrow.as_bytes())])?;
    write(directory, name, picture)
}

fn put(directory: &Path, files: &[(String, &[u8])]) -> Result<Vec<PathBuf>> {
    let failed =
        |source| Error::pfs(format!("writing pictures into {}", directory.display()), source);
    std::fs::create_dir_all(directory).map_err(failed)?;
    let write = |(name, content): &(String, &[u8])| {
        let path = directory.join(name);
        std::fs::write(&path, content).map_err(failed)?;
        Ok(path)
    };
    files.iter().map(write).collect()
}

/// Writes a picture into a file that ends in .svg or .png.
pub fn write_file(path: &Path, picture: &Picture) -> Result<()> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let content = match ending {
        "svg" => picture.wide.clone().into_bytes(),
        "png" => to_png(&picture.wide)?,
        _ => {
            let detail = format!("`{}` ends neither in .svg nor in .png", path.display());
            return Err(Error::new(ErrorKind::InvalidInput, "drawing a picture", detail)
                .remedy("name a file such as control.svg"));
        }
    };
    std::fs::write(path, content)
        .map_err(|source| Error::pfs(format!("writing {}", path.display()), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_becomes_files_or_the_failure_is_told() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\"/>";
        let picture = Picture { wide: svg.to_owned(), narrow: "narrow".to_owned() };
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("new");
        let paths = write_for_page(&made, "chart", &picture).unwrap();
        assert_eq!(paths, [made.join("chart.svg"), made.join("chart.png")]);
        assert!(std::fs::read(&paths[1]).unwrap().starts_with(b"\x89PNG"));
        assert_eq!(std::fs::read_to_string(made.join("chart-narrow.svg")).unwrap(), "narrow");
        assert!(write(&made.join("chart.svg"), "below-a-file", &picture).is_err());
        assert!(write_file(&made.join("chart.gif"), &picture).is_err());
        let broken = Picture { wide: "no svg".to_owned(), narrow: String::new() };
        assert!(write(&made, "broken", &broken).is_err());
    }
}
