/*
 * Deletes many files below a directory; each counts by itself, and what failed is told. Directories
 * go if they are empty by then: what lies deepest is deleted first.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.BulkDeleteUtils;
import org.apache.hadoop.fs.Path;

final class TideBulkDelete implements BulkDelete {

    private static final int PATHS_MAX = 1_000;

    private final TideFileSystem system;
    private final Path base;

    TideBulkDelete(TideFileSystem system, Path base) {
        this.system = system;
        this.base = base;
    }

    @Override
    public int pageSize() {
        return PATHS_MAX;
    }

    @Override
    public Path basePath() {
        return base;
    }

    @Override
    public List<Map.Entry<Path, String>> bulkDelete(Collection<Path> paths) throws IOException {
        BulkDeleteUtils.validateBulkDeletePaths(paths, PATHS_MAX, base);
        List<Path> deepestFirst = new ArrayList<>(paths);
        deepestFirst.sort(Comparator.comparingInt(Path::depth).reversed());
        List<Map.Entry<Path, String>> failed = new ArrayList<>();
        for (Path path : deepestFirst) {
            try {
                system.delete(path, false);
            } catch (IOException error) {
                failed.add(Map.entry(path, error.toString()));
            }
        }
        return failed;
    }

    @Override
    public void close() {}
}
