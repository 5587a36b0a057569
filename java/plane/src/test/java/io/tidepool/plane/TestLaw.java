package io.tidepool.plane;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.Test;

/** The law gives what the one on the node gives; its tests read the same table. */
public class TestLaw {

    @Test
    public void decisionsAreThoseOfTheTable() throws IOException {
        List<String> lines = Files.readAllLines(Path.of("src/test/resources/dynims-vectors.csv"));
        String run = "";
        long capacity = 0;
        int rows = 0;
        for (String line : lines) {
            if (line.startsWith("#")) {
                continue;
            }
            String[] fields = line.split(",");
            boolean printed = fields[1].equals("dynims-printed");
            double gain = Double.parseDouble(fields[2]);
            Law law = new Law(printed, gain, Double.parseDouble(fields[3]));
            Reading reading = new Reading();
            reading.totalBytes = Long.parseLong(fields[4]);
            reading.availableBytes = fields[5].equals("-")
                    ? Reading.UNKNOWN : Long.parseLong(fields[5]);
            long[] bytes = new long[4];
            for (int i = 0; i < bytes.length; i++) {
                bytes[i] = Long.parseLong(fields[6 + i]);
            }
            capacity = run.equals(fields[0]) ? capacity : bytes[0];
            run = fields[0];
            reading.stores = new StoreFacts[] {
                new StoreFacts("tidepool", bytes[0], bytes[1], bytes[2], bytes[3])};
            capacity = law.decide(capacity, reading);
            assertThat(capacity).as(line).isEqualTo(Long.parseLong(fields[10]));
            rows++;
        }
        assertThat(rows).isGreaterThan(300);
    }

    @Test
    public void boundsOfSeveralStoresAreSummedUp() {
        Reading reading = new Reading();
        reading.totalBytes = 1000;
        reading.availableBytes = 1000;
        reading.stores = new StoreFacts[] {new StoreFacts("a", 100, 10, 100, 1),
            new StoreFacts("b", 100, 10, 100, 4)};
        Law law = new Law(false, 0.5, 0.95);
        assertThat(law.decide(500, reading)).as("at most the sum of max").isEqualTo(200);
        reading.availableBytes = 0;
        assertThat(law.decide(0, reading)).as("at least the sum of min").isEqualTo(20);
        // 170 - 0.5 x 951 x 1 / 950 = 169.5, in blocks of the largest store.
        reading.stores[1].blockBytes = 2;
        reading.availableBytes = 45;
        assertThat(law.decide(171, reading)).isEqualTo(168);
    }
}
