# A JVM that maps its archive of classes and its jars.
set -e
command -v javac > /dev/null && command -v jar > /dev/null || { echo "no JDK"; exit 77; }
cat > Sum.java <<'J'
import java.util.stream.IntStream;
public class Sum {
    public static void main(String[] arguments) {
        var words = IntStream.range(0, 200_000).mapToObj(String::valueOf).map(String::hashCode);
        System.out.println(words.mapToLong(Integer::longValue).sum());
    }
}
J
javac -d classes Sum.java
jar cf sum.jar -C classes .
java -Xshare:dump -XX:SharedArchiveFile="$PWD/classes.jsa" -cp sum.jar > /dev/null 2>&1
wanted=$(java -cp classes Sum)
for round in $(seq 10); do
    [ "$(java -Xshare:on -XX:SharedArchiveFile="$PWD/classes.jsa" -cp sum.jar Sum)" = "$wanted" ]
done
