package io.tidepool.plane;

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.runtime.checkpoint.Checkpoints;
import org.apache.flink.runtime.checkpoint.OperatorState;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.runtime.checkpoint.metadata.CheckpointMetadata;
import org.apache.flink.runtime.state.KeyGroupsStateHandle;
import org.apache.flink.runtime.state.KeyedStateHandle;
import org.apache.flink.runtime.state.OperatorStateHandle;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;

/**
 * Checkpoints of earlier runs in a directory of this machine, as Flink lays them out:
 * {@code JOB/chk-N/_metadata}. A damaged one is passed over, and older ones than are kept are
 * removed: a run that is killed leaves its last ones behind.
 */
final class KeptCheckpoints {

    /** Whole checkpoints that stay, the one that is gone on from among them. */
    static final int KEPT = 3;

    /** File that makes a checkpoint whole. */
    private static final String WHOLE = "_metadata";
    private static final String JOB = "[0-9a-f]{32}";
    private static final String CHECKPOINT = "chk-[0-9]+";
    private static final List<String> OF_JOB = List.of("shared", "taskowned");
    /** Directories between that of the checkpoints and the file: the job, then the checkpoint. */
    private static final int DEPTH = 3;

    private final Path directory;
    private final Consumer<String> say;

    KeptCheckpoints(Path directory, Consumer<String> say) {
        this.directory = directory;
        this.say = say;
    }

    /** The newest that can be read. All that are older than the last one that is kept go. */
    Optional<String> latest() {
        if (!Files.isDirectory(directory)) {
            return Optional.empty();
        }
        List<Path> whole = new ArrayList<>();
        try (Stream<Path> files = Files.find(directory, DEPTH,
                (path, facts) -> path.endsWith(WHOLE))) {
            List<Path> newestFirst = files.sorted(Comparator.comparing(
                    (Path path) -> path.toFile().lastModified()).reversed())
                    .collect(Collectors.toList());
            for (Path file : newestFirst) {
                if (whole.size() < KEPT && isWhole(file)) {
                    whole.add(file);
                }
            }
        } catch (IOException | UncheckedIOException unreadable) {
            throw new IllegalArgumentException("--restore latest: " + unreadable, unreadable);
        }
        if (whole.size() == KEPT) {
            removeBefore(whole.get(KEPT - 1).toFile().lastModified());
        }
        return whole.stream().findFirst().map(path -> path.getParent().toUri().toString());
    }

    private boolean isWhole(Path file) {
        try (DataInputStream input =
                new DataInputStream(new BufferedInputStream(Files.newInputStream(file)))) {
            CheckpointMetadata metadata = Checkpoints.loadCheckpointMetadata(input,
                    KeptCheckpoints.class.getClassLoader(), file.getParent().toUri().toString());
            for (OperatorState operator : metadata.getOperatorStates()) {
                for (OperatorSubtaskState part : operator.getStates()) {
                    needFiles(part);
                }
            }
            return true;
        } catch (IOException | RuntimeException | OutOfMemoryError damaged) {
            // A damaged length asks for more memory than there is.
            say.accept("the checkpoint " + file.getParent() + " is damaged and passed over: "
                    + damaged);
            return false;
        }
    }

    private static void needFiles(OperatorSubtaskState part) throws IOException {
        for (OperatorStateHandle state : part.getManagedOperatorState()) {
            needFile(state.getDelegateStateHandle());
        }
        for (KeyedStateHandle state : part.getManagedKeyedState()) {
            needKeyed(state);
        }
        for (KeyedStateHandle state : part.getRawKeyedState()) {
            needKeyed(state);
        }
    }

    private static void needKeyed(KeyedStateHandle state) throws IOException {
        if (state instanceof KeyGroupsStateHandle) {
            needFile(((KeyGroupsStateHandle) state).getDelegateStateHandle());
        }
    }

    private static void needFile(StreamStateHandle state) throws IOException {
        if (state instanceof FileStateHandle) {
            Path file = Path.of(((FileStateHandle) state).getFilePath().toUri().getPath());
            if (!Files.isRegularFile(file) || Files.size(file) < state.getStateSize()) {
                throw new IOException(file + " is missing or cut");
            }
        }
    }

    private void removeBefore(long keptMs) {
        for (File job : within(directory.toFile(), JOB)) {
            boolean isOver = job.lastModified() < keptMs;
            for (File checkpoint : within(job, CHECKPOINT)) {
                File whole = new File(checkpoint, WHOLE);
                if ((whole.exists() ? whole : checkpoint).lastModified() < keptMs) {
                    for (File file : within(checkpoint, ".*")) {
                        file.delete();
                    }
                    checkpoint.delete();
                }
            }
            // Only what is empty goes.
            if (isOver && within(job, CHECKPOINT).isEmpty()) {
                OF_JOB.forEach(name -> new File(job, name).delete());
                job.delete();
            }
        }
    }

    private static List<File> within(File directory, String names) {
        File[] found = directory.listFiles((parent, name) -> name.matches(names));
        return found == null ? List.of() : List.of(found);
    }
}
