# Has mvn download something small into the current folder, which is empty.
printf '%s' '<project><modelVersion>4.0.0</modelVersion>' \
  '<parent><groupId>org.apache</groupId><artifactId>apache</artifactId><version>31</version><relativePath/></parent>' \
  '<artifactId>asks</artifactId><packaging>pom</packaging></project>' > pom.xml
mvn --batch-mode --quiet -Dmaven.repo.local="$PWD/repository" validate
