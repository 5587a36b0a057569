package io.tidepool.plane;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Weights of users or jobs, from a file of lines {@code user NAME WEIGHT}, {@code job NAME WEIGHT},
 * {@code default WEIGHT} (all others, 1 where it is not there) and {@code idle WEIGHT} (a node
 * without jobs, 1 where it is not there); what follows {@code #} is a remark.
 */
final class Weights implements Serializable {

    private static final long serialVersionUID = 1;

    private final boolean byJob;
    private final Map<String, Double> named = new HashMap<>();
    private double others = 1;
    private double idle = 1;

    private Weights(boolean byJob) {
        this.byJob = byJob;
    }

    /** All the same. */
    static Weights equal(boolean byJob) {
        return new Weights(byJob);
    }

    static Weights read(Path file, boolean byJob) {
        try {
            return of(Files.readAllLines(file), byJob);
        } catch (IOException unreadable) {
            throw new IllegalArgumentException("--weights " + file + ": " + unreadable, unreadable);
        }
    }

    static Weights of(List<String> lines, boolean byJob) {
        Weights weights = new Weights(byJob);
        for (String line : lines) {
            String text = line.replaceAll("#.*", "").strip();
            if (!text.isEmpty()) {
                weights.add(text.split("\\s+"), line);
            }
        }
        return weights;
    }

    private void add(String[] words, String line) {
        double weight = weight(words[words.length - 1], line);
        boolean isNamed = words.length == 3;
        if (isNamed && (words[0].equals("user") || words[0].equals("job"))) {
            if (words[0].equals("job") == byJob) {
                named.put(words[1], weight);
            }
        } else if (words.length == 2 && words[0].equals("default")) {
            others = weight;
        } else if (words.length == 2 && words[0].equals("idle")) {
            idle = weight;
        } else {
            throw new IllegalArgumentException("weights: not understood: " + line
                    + " (user NAME WEIGHT, job NAME WEIGHT, default WEIGHT or idle WEIGHT)");
        }
    }

    private static double weight(String text, String line) {
        try {
            double weight = Double.parseDouble(text);
            if (weight >= 0 && weight <= 1e9) {
                return weight;
            }
        } catch (NumberFormatException noNumber) {
            // Told below, with the line.
        }
        throw new IllegalArgumentException("weights: a weight is a number from 0 to 1e9: " + line);
    }

    /** Whose a job's memory is. */
    String owner(JobUse job) {
        return byJob ? job.name : job.user;
    }

    double of(String owner) {
        return named.getOrDefault(owner, others);
    }

    /** Weight of a node without jobs. */
    double idle() {
        return idle;
    }
}
