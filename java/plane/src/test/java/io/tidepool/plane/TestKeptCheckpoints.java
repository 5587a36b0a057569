package io.tidepool.plane;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.jobgraph.OperatorID;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.KeyGroupRangeOffsets;
import org.apache.flink.runtime.state.KeyGroupsStateHandle;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Which checkpoint the job goes on from, and which ones stay. */
public class TestKeptCheckpoints {

    private static final String OLD = "0".repeat(31) + "a";
    private static final String NEW = "0".repeat(31) + "b";
    /** Bytes of a state that has a file of its own. */
    private static final int STATE_BYTES = 100;

    @Rule
    public final TemporaryFolder folder = new TemporaryFolder();

    private final List<String> said = new ArrayList<>();
    private int second;

    private String latest() {
        return new KeptCheckpoints(folder.getRoot().toPath(), said::add).latest().orElse("");
    }

    /** A whole checkpoint, newer than all before, with its state in a file beside it. */
    private Path checkpoint(String name) throws IOException {
        Path directory = folder.getRoot().toPath().resolve(name);
        Files.createDirectories(directory);
        for (String also : List.of("shared", "taskowned")) {
            Files.createDirectories(directory.resolveSibling(also));
        }
        Path file = directory.resolve("state");
        Files.write(file, new byte[STATE_BYTES]);
        KeyGroupsStateHandle state = new KeyGroupsStateHandle(
                new KeyGroupRangeOffsets(KeyGroupRange.of(0, 0)),
                new FileStateHandle(new org.apache.flink.core.fs.Path(file.toUri()), STATE_BYTES));
        OperatorState operator = new OperatorState(null, null, new OperatorID(1, 1), 1, 1);
        operator.putState(0, OperatorSubtaskState.builder().setManagedKeyedState(state).build());
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        Checkpoints.storeCheckpointMetadata(
                new CheckpointMetadata(1, List.of(operator), List.of()), bytes);
        Path metadata = directory.resolve("_metadata");
        write(metadata, bytes.toByteArray());
        return metadata;
    }

    /** Writes the file, which is then newer than all before. */
    private void write(Path file, byte[] bytes) throws IOException {
        Files.write(file, bytes);
        second++;
        for (File part : List.of(file.toFile(), file.getParent().toFile(),
                file.getParent().getParent().toFile())) {
            assertThat(part.setLastModified(second * 1000L)).isTrue();
        }
    }

    private List<String> left() throws IOException {
        Path root = folder.getRoot().toPath();
        try (Stream<Path> files = Files.walk(root, 2)) {
            return files.filter(path -> path.getFileName().toString().startsWith("chk"))
                    .map(path -> root.relativize(path).toString()).sorted()
                    .collect(Collectors.toList());
        }
    }

    @Test
    public void latestIsTheNewestWholeCheckpoint() throws IOException {
        assertThat(latest()).isEmpty();
        assertThat(new KeptCheckpoints(Path.of("/not/there"), said::add).latest()).isEmpty();
        checkpoint(OLD + "/chk-9");
        checkpoint(NEW + "/chk-2");
        Files.createDirectories(folder.getRoot().toPath().resolve(NEW + "/chk-3"));
        assertThat(latest()).endsWith(NEW + "/chk-2/");
        Configuration settings = Settings.of(Samples.options("--restore", "latest", "--checkpoints",
                folder.getRoot().toString()));
        assertThat(settings.getString("execution.state-recovery.path", ""))
                .endsWith(NEW + "/chk-2/");
        assertThat(settings.getString("execution.buffer-timeout.interval", "")).isEqualTo("0ms");
        assertThat(said).isEmpty();
    }

    @Test
    public void aDamagedOneIsPassedOverWithALine() throws IOException {
        checkpoint(OLD + "/chk-1");
        Path newest = checkpoint(NEW + "/chk-2");
        byte[] whole = Files.readAllBytes(newest);
        for (int bytes = 0; bytes < whole.length; bytes++) {
            write(newest, Arrays.copyOf(whole, bytes));
            said.clear();
            assertThat(latest()).as("cut at %d", bytes).endsWith(OLD + "/chk-1/");
            assertThat(said).hasSize(1);
            assertThat(said.get(0)).contains("chk-2").contains("damaged");
        }
        write(newest, whole);
        assertThat(latest()).endsWith(NEW + "/chk-2/");
        Files.write(newest.resolveSibling("state"), new byte[STATE_BYTES - 1]);
        assertThat(latest()).as("a state that is cut").endsWith(OLD + "/chk-1/");
        Files.delete(newest.resolveSibling("state"));
        assertThat(latest()).as("a state that is gone").endsWith(OLD + "/chk-1/");
    }

    @Test
    public void theNewestWholeOnesStayAndOlderOnesGo() throws IOException {
        Path other = folder.getRoot().toPath().resolve("other/chk-1");
        Files.createDirectories(other);
        write(other.resolve("file"), new byte[1]);
        for (int run = 1; run <= 5; run++) {
            checkpoint("0".repeat(31) + run + "/chk-" + run);
        }
        Path damaged = checkpoint(NEW + "/chk-6");
        write(damaged, new byte[0]);
        assertThat(latest()).endsWith("5/chk-5/");
        assertThat(left()).containsExactly("0".repeat(31) + "3/chk-3", "0".repeat(31) + "4/chk-4",
                "0".repeat(31) + "5/chk-5", NEW + "/chk-6", "other/chk-1");
        assertThat(folder.getRoot().toPath().resolve("0".repeat(31) + "1")).doesNotExist();
    }

    @Test
    public void nothingGoesWhereFewAreWhole() throws IOException {
        for (int run = 1; run <= 5; run++) {
            Path file = checkpoint("0".repeat(31) + run + "/chk-" + run);
            if (run > 2) {
                write(file, new byte[0]);
            }
        }
        assertThat(latest()).endsWith("2/chk-2/");
        assertThat(left()).hasSize(5);
    }
}
